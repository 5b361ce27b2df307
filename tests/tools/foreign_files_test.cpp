#include "tools/base/input_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <utility>

#include "tests/tools/run_command.h"
#include "tests/tools/temporary_file.h"

namespace cachalot::tools {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;
using std::string_literals::operator""s;

// A zip's first header, with the name of its first file.
std::string zip(const std::string& name) { return "PK\x03\x04" + std::string(26, '\0') + name + "\x80\x02}q\x00."s; }

// torch.save before 1.6: its magic number, pickled.
const std::string kLegacy = "\x80\x02\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.";

std::string safetensors() {
  return "\x40\0\0\0\0\0\0\0"s + R"({"weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
}

TEST(ForeignFormats, AreToldWithWhatToDo) {
  const std::string how =
      "make one with torch.cuda.memory._record_memory_history() at the start and "
      "torch.cuda.memory._dump_snapshot(\"snapshot.pickle\") later";
  const auto is = [&](const std::string& what) { return "is " + what + ", not a memory snapshot: " + how; };
  EXPECT_EQ(foreign_format(zip("archive/data.pkl"), "memory snapshot"), is("a PyTorch checkpoint (torch.save)"));
  EXPECT_EQ(foreign_format(kLegacy, "memory snapshot"), is("a PyTorch checkpoint (torch.save)"));
  EXPECT_EQ(foreign_format(safetensors(), "memory snapshot"), is("a safetensors checkpoint"));
  EXPECT_EQ(foreign_format(zip("weights.npy"), "memory snapshot"), is("a NumPy archive (.npz)"));
  EXPECT_EQ(foreign_format(zip("letter.txt"), "memory snapshot"), is("a zip archive"));
  EXPECT_EQ(foreign_format(std::string(257, '\0') + "ustar  ", "memory snapshot"), is("a tar archive"));
  EXPECT_EQ(foreign_format("\n<!DOCTYPE html>", "memory snapshot"), is("an HTML page"));
  EXPECT_EQ(foreign_format("\x7f\x45LF", "memory snapshot"), is("a program or a library (ELF)"));
  EXPECT_EQ(foreign_format("\x28\xb5\x2f\xfd....", "trace"),
            "is compressed with zstd: decompress it first (gzip is read as it is)");
}

TEST(ForeignFormats, JsonIsKnownByItsFirstKeys) {
  EXPECT_THAT(foreign_format(R"({"schemaVersion": 1, "traceEvents": []})", "memory snapshot"),
              StartsWith("is a trace of PyTorch's profiler or of Perfetto, not a memory snapshot"));
  for (const std::string report :
       {R"({"file":"a.pickle","settings":"","devices":[{"device":0,"verdict":{)",
        R"({"snapshot":"a.pickle","unknown_actions":0)", R"({"file":"a.pickle","device":0,"events":261)",
        R"({"trace":"a.csv","events":12000)", R"({"a":"1","b":"2","at":"peak","growth_bytes":1)"})
    EXPECT_THAT(foreign_format(report, "memory snapshot"), StartsWith("is a report of cachalot, as --json prints it"));
}

TEST(ForeignFormats, OtherAnswersOfPyTorchAreNamed) {
  EXPECT_THAT(foreign_format("[[0, 1], [[0, 10]]]", "memory snapshot"),
              StartsWith("is a memory timeline of PyTorch's"));
  EXPECT_THAT(foreign_format(R"([{"ph": "X", "ts": 1}])", "memory snapshot"), StartsWith("is a trace of PyTorch's"));
  EXPECT_THAT(foreign_format(R"({"active.all.allocated": 1})", "memory snapshot"),
              StartsWith("is the answer of torch.cuda.memory_stats()"));
  EXPECT_THAT(foreign_format("{\"a\": 1}\n{\"a\": 2}\n", "memory snapshot"), StartsWith("is a log of JSON lines"));
  EXPECT_THAT(unknown_format("Epoch 1\nCUDA out of memory. Tried"), EndsWith("what an error message tells"));
  const TemporaryFile list(R"([{"segments": [], "device_traces": []}])");
  EXPECT_THAT(run_command(std::string("'") + CACHALOT_COMMAND + "' explain " + list.path()).err,
              HasSubstr("it is a snapshot itself: a file has one, and no list of them"));
}

// The fronts are those of texts from editors and shells.
TEST(TextFiles, MayBeginWithAByteOrderMarkOrWithBlanks) {
  for (const char* front : {"", "\xEF\xBB\xBF", "\n", "\r\n\t ", "\xEF\xBB\xBF\n "}) {
    const TemporaryFile snapshot(front + std::string(R"({"segments": [], "device_traces": []})"));
    const Outcome outcome = run_command(std::string("'") + CACHALOT_COMMAND + "' snapshot " + snapshot.path());
    EXPECT_EQ(outcome.exit_code, 0) << front << outcome.err;
  }
  const TemporaryFile trace(
      "\xEF\xBB\xBF"
      "a,0,512,0\nf,0\n");
  EXPECT_EQ(run_command(std::string("'") + CACHALOT_COMMAND + "' replay " + trace.path()).exit_code, 0);
}

TEST(ForeignFormats, AreNotSeenInSnapshotsAndTraces) {
  for (const std::string& own :
       {"\x80\x04\x95}\x94."s, "{\"segments\": []}"s, "[]"s, "a,0,512,0\n"s, ""s, "PK"s, "}(X"s}) {
    EXPECT_EQ(foreign_format(own, "memory snapshot"), "") << own;
  }
  EXPECT_TRUE(looks_like_trace("a,0,512,0\n"));
  EXPECT_FALSE(looks_like_trace("a,b"));
  EXPECT_FALSE(looks_like_trace("{"));
}

void expect_refusal(const std::string& command, const std::string& content, const std::string& message, bool gzip) {
  const TemporaryFile file;
  if (gzip) {
    write_gzip(file.path(), content);
  } else {
    std::ofstream(file.path(), std::ios::binary) << content;
  }
  const Outcome outcome = run_command(std::string("'") + CACHALOT_COMMAND + "' " + command + " " + file.path());
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, StartsWith("cachalot: " + file.path() + ": " + message));
}

TEST(ForeignFormats, AreRefusedByTheCommandsAlsoInsideGzip) {
  for (const bool gzip : {false, true}) {
    for (const auto& [command, wanted] :
         {std::pair{"snapshot", "memory snapshot"}, {"replay", "trace or a memory snapshot"}}) {
      const std::string not_wanted = std::string(", not a ") + wanted + ": make one with torch.cuda.memory.";
      expect_refusal(command, zip("model/data.pkl"), "is a PyTorch checkpoint (torch.save)" + not_wanted, gzip);
    }
    expect_refusal("snapshot", safetensors(), "is a safetensors checkpoint, not a memory snapshot", gzip);
    expect_refusal("replay", kLegacy, "is a PyTorch checkpoint (torch.save), not a memory snapshot", gzip);
    expect_refusal("snapshot", "a,0,512,0\n",
                   "is an allocation trace, not a memory snapshot: `cachalot replay` takes traces", gzip);
    for (const char* command : {"snapshot", "replay", "explain", "advise"}) {
      expect_refusal(command, "id,lower,upper,size\n1,0,3,512\n",
                     "has no known format: it begins with 'id,lower,upper,size'. cachalot reads memory snapshots",
                     gzip);
    }
  }
}

}  // namespace
}  // namespace cachalot::tools
