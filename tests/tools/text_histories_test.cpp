// Histories of text files: RMM's logs and cachalot's traces.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/tools/complaint.h"
#include "tests/tools/temporary_file.h"
#include "tools/analysis/recorded_trace.h"
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

TEST(HistoryOfATrace, IsTheTrace) {
  const History history = history_of("a,7,100,3\na,8,200,0\nf,7\na,9,300,0\n");
  EXPECT_EQ(history.format, HistoryFormat::cachalot_trace);
  const Trace trace = trace_of(Timeline(history, history.devices.at(0)));
  EXPECT_EQ(trace.event_count, 4u);
  EXPECT_EQ(trace.slots, 2u);
  EXPECT_EQ(trace.events[3].bytes, 300u);
  EXPECT_EQ(trace.streams.size(), 2u);
}

TEST(Histories, OfNoKnownFormatAreRefusedByWhatTheyAre) {
  // STAlloc's traces and minimalloc's buffers are not read.
  for (const std::string first : {"hello", "1 0x7f00 512 0", "Iteration Index : 0", "id,lower,upper,size"}) {
    EXPECT_EQ(complaint(first + "\nmore\n"),
              " has no known format: it begins with '" + first +
                  "'. cachalot reads memory snapshots (PyTorch's pickle, cachalot's JSON), its own allocation traces, "
                  "and RMM's logs");
  }
  EXPECT_NE(complaint("\x89PNG....").find("is a PNG picture"), std::string::npos);
  EXPECT_NE(complaint("").find("the file is empty"), std::string::npos);
}

}  // namespace
}  // namespace cachalot::tools::text_histories_tests
