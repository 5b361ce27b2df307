#include "tools/replay/trace_reader.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "cachalot/errors.h"
#include "tests/tools/complaint.h"
#include "tests/tools/data_files.h"
#include "tests/tools/temporary_file.h"

namespace cachalot::tools {
namespace {

Trace read_trace_text(const std::string& text) { return read_trace(TemporaryFile(text).path()); }

// Returns the reader's message about a file, without the file's name; "" when it has no complaint.
std::string complaint_about_file(const std::string& path) {
  return complaint_about(path, ":", [&] { read_trace(path); });
}

std::string complaint_about_trace(const std::string& text) { return complaint_about_file(TemporaryFile(text).path()); }

TEST(TraceReader, ReadsAllocationsAndFrees) {
  const Trace trace = read_trace_text("a,1,512,0\na,2,4096,3\nf,1\n");
  ASSERT_EQ(trace.events.size(), 3u);
  EXPECT_EQ(trace.slots, 2u);
  EXPECT_EQ(trace.events[0].bytes, 512u);
  EXPECT_EQ(trace.events[1].bytes, 4096u);
  EXPECT_FALSE(trace.events[1].is_free());
  EXPECT_TRUE(trace.events[2].is_free());
  EXPECT_EQ(trace.events[2].slot, trace.events[0].slot);
  EXPECT_NE(trace.events[1].slot, trace.events[0].slot);
}

TEST(TraceReader, UsesASlotAgainOnceItsAllocationIsFreed) {
  const Trace trace = read_trace_text("a,1,512,0\nf,1\na,2,512,0\nf,2\na,3,512,0\n");
  EXPECT_EQ(trace.slots, 1u);
}

TEST(TraceReader, MapsStreamZeroToTheDefaultStreamAndOthersToDistinctOnes) {
  const Trace trace = read_trace_text("a,1,1,7\na,2,1,0\na,3,1,18446744073709551615\na,4,1,7\n");
  ASSERT_EQ(trace.streams.size(), 3u);
  EXPECT_EQ(trace.streams[trace.events[1].stream], nullptr);
  EXPECT_EQ(std::set<Stream>(trace.streams.begin(), trace.streams.end()).size(), 3u);
  EXPECT_EQ(trace.events[3].stream, trace.events[0].stream);
}

TEST(TraceReader, TakesIdsOfSixtyFourBitsInAnyOrder) {
  const Trace trace = read_trace_text("a,18446744073709551615,1,0\na,0,2,0\nf,18446744073709551615\nf,0\n");
  EXPECT_EQ(trace.slots, 2u);
  EXPECT_EQ(trace.events[2].slot, trace.events[0].slot);
  EXPECT_EQ(trace.events[3].slot, trace.events[1].slot);
}

TEST(TraceReader, TakesSizesFromZeroToJustBelowOneExbibyte) {
  const Trace trace = read_trace_text("a,1,0,0\na,2,1152921504606846975,0\n");
  EXPECT_EQ(trace.events[0].bytes, 0u);
  EXPECT_EQ(trace.events[1].bytes, 1152921504606846975u);
}

TEST(TraceReader, ReadsGzipAsItReadsText) {
  std::string text;
  for (int id = 0; id < 50000; ++id) text += "a," + std::to_string(id) + "," + std::to_string(id * 7) + ",0\n";
  const TemporaryFile zipped;
  write_gzip(zipped.path(), text);
  const Trace plain = read_trace_text(text);
  const Trace trace = read_trace(zipped.path());
  ASSERT_EQ(trace.events.size(), 50000u);
  EXPECT_TRUE(std::ranges::equal(trace.events, plain.events, [](const TraceEvent& a, const TraceEvent& b) {
    return a.bytes == b.bytes && a.slot == b.slot && a.stream == b.stream;
  }));
}

TEST(TraceReader, ReadsEveryShippedTrace) {
  std::size_t traces = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kTraces)) {
    if (entry.path().extension() != ".gz") continue;
    const std::string text = read_gzip(entry.path().string());
    const Trace trace = read_trace(entry.path().string());
    EXPECT_EQ(trace.events.size(), static_cast<std::size_t>(std::ranges::count(text, '\n'))) << entry.path();
    ++traces;
  }
  EXPECT_EQ(traces, 9u);
}

TEST(TraceReader, NamesAMissingFileAndTheReason) {
  EXPECT_EQ(complaint_about_file("/nowhere/trace.csv"), " cannot open the trace: No such file or directory");
}

TEST(TraceReader, RefusesADirectory) {
  EXPECT_EQ(complaint_about_file(std::filesystem::temp_directory_path().string()), " is a directory, and no file");
}

TEST(TraceReader, RefusesATraceWithoutEvents) {
  EXPECT_EQ(complaint_about_trace(""), "1: the trace is empty: it must have at least one event");
  const TemporaryFile zipped;
  write_gzip(zipped.path(), "");
  EXPECT_EQ(complaint_about_file(zipped.path()), "1: the trace is empty: it must have at least one event");
}

TEST(TraceReader, RefusesALastLineWithoutNewline) {
  EXPECT_EQ(complaint_about_trace("a,1,512,0\na,2,5"),
            "2: the file is cut off: its last line, 'a,2,5', does not end with a newline");
  EXPECT_EQ(complaint_about_trace("a,1,512,0\na,2,5120,0"),
            "2: the file is cut off: its last line, 'a,2,5120,0', does not end with a newline");
}

TEST(TraceReader, RefusesAGzipFileCutOffAnywhere) {
  std::string text;
  for (int id = 0; id < 2000; ++id) text += "a," + std::to_string(id) + ",512,0\n";
  const TemporaryFile zipped;
  write_gzip(zipped.path(), text);
  const std::string whole = read_whole(zipped.path());
  for (std::size_t bytes = 3; bytes < whole.size(); bytes += 97) {
    const TemporaryFile cut(whole.substr(0, bytes));
    EXPECT_NE(complaint_about_file(cut.path()).find(": the gzip file is cut off"), std::string::npos) << bytes;
  }
  const TemporaryFile without_its_end(whole.substr(0, whole.size() - 1));
  EXPECT_EQ(complaint_about_file(without_its_end.path()), "2001: the gzip file is cut off");
}

TEST(TraceReader, RefusesAGzipFileThatIsDamaged) {
  const TemporaryFile zipped;
  write_gzip(zipped.path(), "a,1,512,0\na,2,512,0\n");
  std::string content = read_whole(zipped.path());
  content[content.size() - 6] = static_cast<char>(content[content.size() - 6] ^ 1);  // in the checksum
  const TemporaryFile damaged(content);
  EXPECT_NE(complaint_about_file(damaged.path()).find(": cannot read the trace: "), std::string::npos);
}

TEST(TraceReader, RefusesALineThatIsNoEvent) {
  const std::string rule = " is no event: expected a,<id>,<bytes>,<stream> or f,<id>";
  EXPECT_EQ(complaint_about_trace("x,1\n"), "1: 'x,1'" + rule);
  EXPECT_EQ(complaint_about_trace("a,1,512,0\n\nf,1\n"), "2: ''" + rule);
  EXPECT_EQ(complaint_about_trace("a,1,512\n"), "1: 'a,1,512'" + rule);
  EXPECT_EQ(complaint_about_trace("a,1,512,0,9\n"), "1: 'a,1,512,0,9'" + rule);
  EXPECT_EQ(complaint_about_trace("a,1,512,0,9,,\n"), "1: 'a,1,512,0,9,,'" + rule);
  EXPECT_EQ(complaint_about_trace("a,1,512,0\nf,1,2\n"), "2: 'f,1,2'" + rule);
  EXPECT_EQ(complaint_about_trace("f\n"), "1: 'f'" + rule);
  EXPECT_EQ(complaint_about_trace("ab,1,512,0\n"), "1: 'ab,1,512,0'" + rule);
  EXPECT_EQ(complaint_about_trace("\x01\xff\n"), "1: '\\x01\\xff'" + rule);
}

TEST(TraceReader, RefusesNegativeNumbers) {
  EXPECT_EQ(complaint_about_trace("a,1,-512,0\n"), "1: size '-512' is negative");
  EXPECT_EQ(complaint_about_trace("a,-1,512,0\n"), "1: id '-1' is negative");
  EXPECT_EQ(complaint_about_trace("a,1,512,-3\n"), "1: stream '-3' is negative");
  EXPECT_EQ(complaint_about_trace("a,1,512,0\nf,-1\n"), "2: id '-1' is negative");
}

TEST(TraceReader, RefusesNumbersThatDoNotFit) {
  EXPECT_EQ(complaint_about_trace("a,1,18446744073709551616,0\n"),
            "1: size '18446744073709551616' does not fit in 64 bits");
  EXPECT_EQ(complaint_about_trace("a,99999999999999999999999,1,0\n"),
            "1: id '99999999999999999999999' does not fit in 64 bits");
}

TEST(TraceReader, RefusesSizesOfOneExbibyteAndMore) {
  EXPECT_EQ(complaint_about_trace("a,1,1152921504606846976,0\n"),
            "1: size 1152921504606846976 is not below 1 EiB (1152921504606846976)");
}

TEST(TraceReader, RefusesWhatIsNoWholeNumber) {
  const std::string rule = " is not a whole number of decimal digits";
  EXPECT_EQ(complaint_about_trace("a,1,,0\n"), "1: size ''" + rule);
  EXPECT_EQ(complaint_about_trace("a,1,5k,0\n"), "1: size '5k'" + rule);
  EXPECT_EQ(complaint_about_trace("a,1,1.5,0\n"), "1: size '1.5'" + rule);
  EXPECT_EQ(complaint_about_trace("a,1, 5,0\n"), "1: size ' 5'" + rule);
  EXPECT_EQ(complaint_about_trace("a,1,+5,0\n"), "1: size '+5'" + rule);
  EXPECT_EQ(complaint_about_trace("a,0x1,5,0\n"), "1: id '0x1'" + rule);
  EXPECT_EQ(complaint_about_trace("a,1,5,0\r\n"), "1: stream '0\\x0d'" + rule);
}

TEST(TraceReader, RefusesAFreeOfAnIdNeverAllocated) {
  EXPECT_EQ(complaint_about_trace("a,1,512,0\nf,2\n"), "2: id 2 is freed but was never allocated");
  EXPECT_EQ(complaint_about_trace("f,1\na,1,512,0\n"), "1: id 1 is freed but was never allocated");
}

TEST(TraceReader, RefusesASecondFree) {
  EXPECT_EQ(complaint_about_trace("a,1,512,0\nf,1\nf,1\n"), "3: id 1 is freed a second time");
}

TEST(TraceReader, RefusesAnIdUsedAgainWhetherAliveOrFreed) {
  EXPECT_EQ(complaint_about_trace("a,1,512,0\na,1,512,0\n"),
            "2: id 1 is allocated a second time: an id is never used again");
  EXPECT_EQ(complaint_about_trace("a,1,512,0\nf,1\na,1,512,0\n"),
            "3: id 1 is allocated a second time: an id is never used again");
}

TEST(TraceReader, RefusesALineOfAnyLengthWithoutHoldingIt) {
  const std::string message = complaint_about_trace("a,1,512,0\n" + std::string(1 << 20, '7'));
  EXPECT_NE(message.find("2: '7777"), std::string::npos) << message;
  EXPECT_NE(message.find("is longer than any line of a trace can be"), std::string::npos) << message;
  EXPECT_LT(message.size(), 200u);
}

TEST(TraceReader, RefusesZeroBytesAndNumbersWithOtherSigns) {
  EXPECT_EQ(complaint_about_trace(std::string("a,1,512,0\0\n", 11)),
            "1: stream '0\\x00' is not a whole number of decimal digits");
  EXPECT_EQ(complaint_about_trace(std::string("\0\0\0\n", 4)),
            "1: '\\x00\\x00\\x00' is no event: expected a,<id>,<bytes>,<stream> or f,<id>");
  EXPECT_EQ(complaint_about_trace("a,1,nan,0\n"), "1: size 'nan' is not a whole number of decimal digits");
}

TEST(TraceReader, RefusesAFileThatMayNotBeRead) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read everything";
  const TemporaryFile file("a,1,512,0\n");
  std::filesystem::permissions(file.path(), std::filesystem::perms::none);
  EXPECT_EQ(complaint_about_file(file.path()), " cannot open the trace: Permission denied");
}

TEST(TraceReader, RefusesMoreStreamsThanADeviceHas) {
  std::string text;
  for (std::size_t i = 0; i <= Trace::kMostStreams; ++i) text += fmt::format("a,{},1,{}\nf,{}\n", i, i, i);
  EXPECT_EQ(complaint_about_trace(text), "8193: a trace has at most 4096 streams");
}

// Used ids are kept as ranges, which meet in any order.
TEST(TraceReader, KnowsEveryIdThatWasUsedInWhateverOrder) {
  const std::uint32_t seed = std::random_device()();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::uint64_t> ids(40);
    std::iota(ids.begin(), ids.end(), round % 2 == 0 ? 0 : std::numeric_limits<std::uint64_t>::max() - 39);
    std::ranges::shuffle(ids, random);
    ids.resize(30);
    std::string text;
    for (const std::uint64_t id : ids)
      text += fmt::format("a,{},1,0\n", id) + (random() % 2 == 0 ? fmt::format("f,{}\n", id) : "");
    EXPECT_EQ(complaint_about_trace(text), "") << text;
    const std::uint64_t again = ids[random() % ids.size()];
    EXPECT_NE(complaint_about_trace(text + fmt::format("a,{},1,0\n", again)).find("is allocated a second time"),
              std::string::npos)
        << text << again;
  }
}

// ---- Traces that stay in their file

TEST(LongTraces, AreHandedOverInPartsThatAreTheWhole) {
  const std::string path = kTraces + "/serve_kv.csv.gz";
  const Trace held = read_trace(path);
  const Trace trace = read_trace(InputFile(path, "trace"), /*most_held_events=*/1000);
  EXPECT_FALSE(trace.is_held());
  EXPECT_TRUE(trace.events.empty());
  EXPECT_EQ(trace.event_count, held.event_count);
  EXPECT_EQ(trace.allocation_count, held.allocation_count);
  EXPECT_EQ(trace.slots, held.slots);
  EXPECT_EQ(trace.streams, held.streams);
  EXPECT_EQ(peak_live_bytes(trace), peak_live_bytes(held));
  std::size_t seen = 0, parts = 0;
  for_each_part(trace, [&](std::span<const TraceEvent> events, std::size_t first) {
    EXPECT_EQ(first, seen);
    const auto same = [](const TraceEvent& a, const TraceEvent& b) {
      return a.bytes == b.bytes && a.slot == b.slot && a.stream == b.stream;
    };
    EXPECT_TRUE(std::ranges::equal(events, std::span(held.events).subspan(first, events.size()), same));
    seen += events.size();
    ++parts;
    return true;
  });
  EXPECT_EQ(seen, held.event_count);
  EXPECT_GT(parts, 1u);
}

TEST(LongTraces, EndWhenTheyAreToldTo) {
  const Trace trace = read_trace(InputFile(kTraces + "/serve_kv.csv.gz", "trace"), 1000);
  int parts = 0;
  for_each_part(trace, [&](auto, auto) { return ++parts < 2; });
  EXPECT_EQ(parts, 2);
}

TEST(LongTraces, ThatChangedSinceAreRefused) {
  const auto complaint_after = [](const std::string& before, const std::string& after) -> std::string {
    const TemporaryFile file(before);
    const Trace trace = read_trace(InputFile(file.path(), "trace"), 1);
    std::ofstream(file.path()) << after;
    try {
      for_each_part(trace, [](auto, auto) { return true; });
      return "";
    } catch (const InvalidArgument& error) {
      return std::string(error.what()).substr(file.path().size());
    }
  };
  const std::string two = "a,1,1,0\na,2,1,0\n";
  EXPECT_EQ(complaint_after(two, two), "");
  EXPECT_EQ(complaint_after(two, "a,1,1,0\n"), ":2: the trace has changed while it was replayed");
  EXPECT_EQ(complaint_after(two, two + "f,1\n"), ":4: the trace has changed while it was replayed");
  EXPECT_EQ(complaint_after(two, "a,1,1,0\na,2,1,1\n"), ":3: the trace has changed while it was replayed");
  EXPECT_EQ(complaint_after("a,1,1,0\nf,1\n", two), ":3: the trace has changed while it was replayed");
  EXPECT_NE(complaint_after(two, "").find(": the trace has changed"), std::string::npos);
}

TEST(LongTraces, MustBeFilesThatCanBeReadAgain) {
  const TemporaryFile pipe;
  ASSERT_EQ(mkfifo(pipe.path().c_str(), 0600), 0);
  const auto read_from_pipe = [&](std::size_t most_held) {
    std::thread writer([&] { std::ofstream(pipe.path()) << "a,1,1,0\na,2,1,0\n"; });
    std::string message;
    try {
      EXPECT_EQ(read_trace(InputFile(pipe.path(), "trace"), most_held).event_count, 2u);
    } catch (const InvalidArgument& error) {
      message = error.what();
    }
    writer.join();
    return message;
  };
  EXPECT_EQ(read_from_pipe(2), "");
  EXPECT_EQ(read_from_pipe(1),
            pipe.path() + ":2: a trace of more than 1 events is read several times: it must be a file, not a pipe");
}

TEST(PeakLiveBytes, DoesNotOverflow) {
  std::string text;
  for (int id = 0; id < 40; ++id) text += fmt::format("a,{},1152921504606846975,0\n", id);
  EXPECT_GE(peak_live_bytes(read_trace_text(text)), std::size_t{1} << 62);
}

TEST(PeakLiveBytes, IsTheMostRequestedBytesAliveAtOnce) {
  EXPECT_EQ(peak_live_bytes(read_trace_text("a,1,100,0\na,2,50,0\nf,1\na,3,20,0\nf,3\na,4,70,0\n")), 150u);
  EXPECT_EQ(peak_live_bytes(read_trace_text("a,1,100,0\nf,1\na,2,30,0\n")), 100u);
}

}  // namespace
}  // namespace cachalot::tools
