// Histories of text files: RMM's logs, STAlloc's and minimalloc's files, cachalot's traces.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/tools/complaint.h"
#include "tests/tools/temporary_file.h"
#include "tools/history/allocations.h"
#include "tools/history/history.h"

namespace cachalot::tools::text_histories_tests {
namespace {

using Action = HistoryEvent::Action;

History history_of(const std::string& content) { return read_history(TemporaryFile(content).path()); }
std::string complaint(const std::string& content) {
  const TemporaryFile file(content);
  return complaint_about(file.path(), ":", [&] { read_history(file.path()); });
}

std::vector<std::string> events_of(const History& history) {
  std::vector<std::string> events;
  for (const HistoryEvent& event : history.devices.at(0).events) {
    if (event.action == Action::free_completed) continue;
    events.push_back(fmt::format("{} {:x} {} on {:x} at {}", name_of(event.action), event.address, event.bytes,
                                 history.streams[event.stream], event.time_us));
  }
  return events;
}

TEST(HistoryOfRmm, HasStreamsAndFailures) {
  const History history = history_of(
      "Thread,Time,Action,Pointer,Size,Stream\n"
      "1,23:59:59.000001,allocate,0x7f00,256,0x2\n"
      "1,23:59:59:5,allocate failure,(nil),1024,0\n"
      "2,00:00:01.000000,free,0x7f00,256,(nil)\n");
  EXPECT_EQ(history.format, HistoryFormat::rmm_csv);
  EXPECT_EQ(events_of(history),
            (std::vector<std::string>{"alloc 7f00 256 on 2 at 86399000001", "oom 0 1024 on 0 at 86399500000",
                                      "free_requested 7f00 256 on 0 at 86401000000"}));
}

TEST(HistoryOfRmm, HasOtherTimesAndNoHeaderAndACutLine) {
  EXPECT_EQ(events_of(history_of("7,1634567890.123456,allocate,0x10,8,0x0\r\n7,1634567891,free,0x10,8,0x0\r\n7,16")),
            (std::vector<std::string>{"alloc 10 8 on 0 at 1634567890123456",
                                      "free_requested 10 8 on 0 at 1634567891000000"}));
}

TEST(HistoryOfRmm, RefusesWhatRmmDoesNotWrite) {
  const std::string header = "Thread,Time,Action,Pointer,Size,Stream\n";
  EXPECT_EQ(complaint(header + "1,0:0:0.0,steal,0x1,1,0x0\n"),
            "2: action 'steal' is none of allocate, free and allocate failure");
  EXPECT_EQ(complaint(header + "1,0:0:0.0,free,0x1,-1,0x0\n"), "2: size '-1' is not a number");
  EXPECT_EQ(complaint(header + "1,noon,free,0x1,1,0x0\n"), "2: time 'noon' is none of HH:MM:SS.ffffff and seconds");
  EXPECT_EQ(complaint(header + "1,1099511627776:00:00.0,free,0x1,1,0x0\n"),
            "2: time '1099511627776:00:00.0' is none of HH:MM:SS.ffffff and seconds");
  EXPECT_EQ(complaint(header + "1,2\n"), "2: '1,2' is no line of Thread,Time,Action,Pointer,Size,Stream");
}

TEST(HistoryOfStalloc, HasEventsAndStages) {
  const History history = history_of(
      "Iteration Index : 0\n1 0x7f00 512 0\nmicro-batch : F\nlm.mlp->MoELayer Layer : F-start\n1 0x7e00 8 0x10\n"
      "lm.mlp->MoELayer Layer : F-end\n0 0x7f00 512 0\n1 0 0 0\nIteration Index : end\n");
  EXPECT_EQ(history.format, HistoryFormat::stalloc);
  EXPECT_EQ(events_of(history), (std::vector<std::string>{"alloc 7f00 512 on 0 at 0", "alloc 7e00 8 on 10 at 1",
                                                          "free_requested 7f00 512 on 0 at 2"}));
  std::vector<std::string> stages;
  for (const StageMark& mark : history.stages) {
    stages.push_back(fmt::format("{} {}", mark.begins ? "begin" : "end", history.texts[mark.name]));
  }
  EXPECT_EQ(stages, (std::vector<std::string>{"begin iteration 0", "begin micro-batch F", "begin lm.mlp F",
                                              "end lm.mlp F", "end micro-batch F", "end iteration 0"}));
  EXPECT_EQ(complaint("1 0x7f00 512 0\nhello\n"),
            "2: 'hello' is neither an event, <0 or 1> <pointer> <bytes> <stream>, nor a mark");
}

TEST(HistoryOfMinimalloc, IsInTheOrderOfTime) {
  for (const char* text :
       {"id,lower,upper,size\nb1,3,9,4\nb2,0,3,600\n", "buffer,start,end,size\nb1,3,8,4\nb2,0,2,600\n"}) {
    const History history = history_of(text);
    EXPECT_EQ(history.format, HistoryFormat::minimalloc);
    EXPECT_EQ(events_of(history),
              (std::vector<std::string>{"alloc 10000000200 600 on 0 at 0", "free_requested 10000000200 600 on 0 at 3",
                                        "alloc 10000000000 4 on 0 at 3", "free_requested 10000000000 4 on 0 at 9"}));
  }
  EXPECT_NE(complaint("id,lower,upper,size\nb1,3,9,4\nb2,0,3,600").find("the file is cut off"), std::string::npos);
  EXPECT_EQ(complaint("id,lower,upper,size\nb1,3,3,4\n"), "2: the buffer ends at 3, not after it begins at 3");
}

TEST(HistoryOfATrace, IsTheTrace) {
  const History history = history_of("a,7,100,3\na,8,200,0\nf,7\na,9,300,0\n");
  EXPECT_EQ(history.format, HistoryFormat::cachalot_trace);
  const Trace trace = trace_of(history, history.devices.at(0));
  EXPECT_EQ(trace.event_count, 4u);
  EXPECT_EQ(trace.slots, 2u);
  EXPECT_EQ(trace.events[3].bytes, 300u);
  EXPECT_EQ(trace.streams.size(), 2u);
}

TEST(Histories, OfNoKnownFormatAreRefusedByWhatTheyAre) {
  EXPECT_NE(complaint("hello\n").find("neither"), std::string::npos);
  EXPECT_NE(complaint("\x89PNG....").find("is a PNG picture"), std::string::npos);
  EXPECT_NE(complaint("").find("the file is empty"), std::string::npos);
}

}  // namespace
}  // namespace cachalot::tools::text_histories_tests
