#include "tools/live/record_reader.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "tests/top/testing.h"
#include "tools/json_text.h"
#include "tools/live/record_report.h"
#include "tools/live/record_writer.h"
#include "tools/live/sample_json.h"

namespace cachalot::tools::live {
namespace {

RecordReader reader_of(const std::string& path) { return RecordReader(InputFile(path, "record")); }

std::string refusal(const std::string& content) {
  const TemporaryFile file(content);
  try {
    RecordReader reader = reader_of(file.path());
    while (reader.next()) {
    }
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

const std::string kHead = R"({"format":"cachalot statistics","version":1})"
                          "\n";

struct RecordFile {
  explicit RecordFile(const std::string& ending) : path(file.path() + ending) {}
  ~RecordFile() { std::filesystem::remove(path); }
  TemporaryFile file;
  std::string path;
};

TEST(Record, SamplesComeBackAsTheyWereWritten) {
  for (const char* ending : {".jsonl", ".jsonl.gz"}) {
    const RecordFile file(ending);
    Sample sample = sample_at(1000.5, 3 * kGiB, 4 * kGiB);
    sample.processes[0].command = "python \"tra\xefin\".py\n\x1b[31m";
    sample.processes[0].devices[0].limit_bytes = 7;
    sample.processes[0].devices[0].rates = Rates{1.5, 2, 3, 4};
    sample.processes[0].devices[0].pools[0].tag = "weights";
    sample.gpus = {gpu_of(1, "T4", {{4711, std::nullopt}, {5, 6}})};
    {
      RecordWriter writer(file.path, 1000, 0.5);
      writer.write(sample);
      writer.write(sample_at(1001, 0, 0));
      // What is written can be read while the writer goes on, as after its death.
      RecordReader early = reader_of(file.path);
      EXPECT_TRUE(early.next().has_value());
      EXPECT_TRUE(early.next().has_value());
      EXPECT_FALSE(early.next().has_value());
    }
    RecordReader reader = reader_of(file.path);
    EXPECT_EQ(reader.header().interval_s, 0.5);
    EXPECT_EQ(reader.header().started, 1000);
    const std::optional<Sample> read = reader.next();
    ASSERT_TRUE(read.has_value());
    EXPECT_EQ(text_of(to_json(*read)), text_of(to_json(sample)));
    EXPECT_EQ(reader.next()->time, 1001);
    EXPECT_FALSE(reader.next().has_value());
    EXPECT_FALSE(reader.is_cut()) << ending;
    EXPECT_EQ(read_gzip(file.path).substr(0, 30), R"({"format":"cachalot statistics)");
    EXPECT_EQ(read_whole(file.path).front() == '{', std::string(ending) == ".jsonl");
  }
}

TEST(Record, WithoutItsEndIsReadAsFarAsItGoes) {
  for (const char* ending : {".jsonl", ".jsonl.gz"}) {
    const RecordFile file(ending);
    {
      RecordWriter writer(file.path, 0, 1);
      for (int i = 0; i < 50; ++i) writer.write(sample_at(i, kGiB, kGiB));
    }
    std::filesystem::resize_file(file.path, std::filesystem::file_size(file.path) - 40);
    RecordReader reader = reader_of(file.path);
    int count = 0;
    while (reader.next()) ++count;
    EXPECT_GE(count, 49) << ending;
    EXPECT_TRUE(reader.is_cut()) << ending;
  }
}

TEST(Record, RefusesWhatIsNoRecordWithLineAndRule) {
  EXPECT_NE(refusal("").find("no first line"), std::string::npos);
  EXPECT_NE(refusal("hello\n").find("line 1: 'hello' is no JSON"), std::string::npos);
  EXPECT_NE(refusal("[1]\n").find("is no JSON object"), std::string::npos);
  EXPECT_NE(refusal("{\"format\":\"other\"}\n").find("its format is not"), std::string::npos);
  EXPECT_NE(refusal("{\"format\":1}\n").find("types of a first line"), std::string::npos);
  EXPECT_NE(refusal(R"({"format":"cachalot statistics","version":2})"
                    "\n")
                .find("version 2"),
            std::string::npos);
  EXPECT_NE(refusal(kHead + "{}\n").find("line 2: 'time' is missing"), std::string::npos);
  EXPECT_NE(refusal(kHead + R"({"time":1,"processes":[1]})" + "\n").find("'processes' has an element"),
            std::string::npos);
  EXPECT_NE(refusal(kHead + R"({"time":1,"processes":[{"pid":-1}]})" + "\n").find("'pid' is no whole"),
            std::string::npos);
  EXPECT_NE(refusal(kHead + R"({"time":1,"processes":[{"devices":[{"device":64}]}]})" + "\n").find("not below 64"),
            std::string::npos);
  EXPECT_NE(refusal(kHead + R"({"time":1,"processes":[{"devices":[{"pools":[{"pool":[1]}]}]}]})" + "\n").find("'pool'"),
            std::string::npos);
  EXPECT_EQ(refusal(kHead + R"({"time":1,"new":{"a":[1]},"processes":[]})" + "\n"), "")
      << "later versions may add keys";
}

TEST(Record, MemoryTimeAndDepthOfALineAreBounded) {
  EXPECT_NE(refusal(kHead + std::string(kMostSampleBytes + 100'000, ' ')).find("more than"), std::string::npos);
  EXPECT_NE(refusal(kHead + std::string(1 << 20, '[') + "\n").find("nested"), std::string::npos);
  std::string many = kHead + R"({"time":1,"processes":[)";
  for (std::size_t i = 0; i <= kMostProcesses; ++i) many += i == 0 ? "{}" : ",{}";
  EXPECT_NE(refusal(many + "]}\n").find("at most 4096"), std::string::npos);
}

RecordSummary summary_of(const std::function<Sample(int)>& sample, int count) {
  const RecordFile file(".jsonl.gz");
  {
    RecordWriter writer(file.path, 0, 1);
    for (int i = 0; i < count; ++i) writer.write(sample(i));
  }
  RecordReader reader = reader_of(file.path);
  return summarize(reader);
}

// Activations come and go, 1 MiB a minute stays.
TEST(RecordSummary, FindsALeakBelowWhatComesAndGoes) {
  const RecordSummary summary = summary_of(
      [](int i) {
        const auto leaked = static_cast<std::uint64_t>(i) * kMiB / 60;
        return sample_at(1000 + i, kGiB + leaked + static_cast<std::uint64_t>(i % 7) * 100 * kMiB, 3 * kGiB);
      },
      1000);
  EXPECT_EQ(summary.samples, 1000u);
  EXPECT_EQ(summary.first_time, 1000);
  EXPECT_EQ(summary.last_time, 1999);
  ASSERT_EQ(summary.devices.size(), 1u);
  const DeviceSummary& device = summary.devices[0];
  EXPECT_EQ(device.pid, 4711u);
  EXPECT_EQ(device.peak_reserved_bytes, 3 * kGiB);
  EXPECT_EQ(device.peak_reserved_time, 1000);
  EXPECT_NEAR(device.growth.bytes_per_hour, 60.0 * kMiB, 3.0 * kMiB);
  EXPECT_TRUE(device.growth.is_certain);
  ASSERT_EQ(device.pools.size(), 1u);
  EXPECT_NEAR(device.pools[0].growth.bytes_per_hour, 60.0 * kMiB, 3.0 * kMiB);
  EXPECT_LE(device.fragmentation.size(), 256u);
  EXPECT_NEAR(device.fragmentation[0].mean_external, 0.5, 0.01);
}

TEST(RecordSummary, FindsNoLeakWhereMemoryIsSteady) {
  const RecordSummary summary = summary_of(
      [](int i) { return sample_at(i, kGiB + static_cast<std::uint64_t>(i % 7) * 100 * kMiB, 3 * kGiB); }, 500);
  EXPECT_EQ(summary.devices[0].growth.bytes_per_hour, 0);
  EXPECT_FALSE(summary.devices[0].growth.is_certain);
}

TEST(RecordSummary, TellsWhenThePeakWasAndProcessesOfOneNumberApart) {
  const RecordSummary summary = summary_of(
      [](int i) {
        Sample sample = sample_at(i, i == 5 ? 2 * kGiB : kGiB, 2 * kGiB);
        sample.processes[0].devices[0].ooms = i < 8 ? 3 : 5;
        sample.processes.push_back(sample.processes[0]);
        sample.processes[1].start = 1000;
        sample.processes[1].devices[0].reserved_bytes = 5 * kGiB;
        return sample;
      },
      10);
  ASSERT_EQ(summary.devices.size(), 2u);
  EXPECT_EQ(summary.devices[0].peak_reserved_bytes, 5 * kGiB) << "the largest comes first";
  EXPECT_EQ(summary.devices[1].peak_allocated_bytes, 2 * kGiB);
  EXPECT_EQ(summary.devices[1].peak_allocated_time, 5);
  EXPECT_EQ(summary.devices[1].ooms, 2u);
}

TEST(RecordReport, NamesPeaksGrowthAndWhatRanOut) {
  const RecordSummary summary = summary_of(
      [](int i) {
        Sample sample = sample_at(1'700'000'000 + 60 * i, kGiB + static_cast<std::uint64_t>(i) * kMiB, 3 * kGiB);
        sample.processes[0].command = "python \x1b[31mtrain.py";
        sample.processes[0].devices[0].ooms = i < 90 ? 0 : 2;
        PoolSample weights{.id = {0, 7}, .tag = "weights", .reserved_bytes = kGiB, .used_bytes = kGiB / 2};
        sample.processes[0].devices[0].pools.push_back(weights);
        return sample;
      },
      100);
  const std::string text = to_text(summary, 10, Style{});
  for (const char* expected :
       {"100 samples in 99.0 min, from 2023-11-14 22:13:20 UTC", "process 4711, device 0: python \\x1b[31mtrain.py",
        "3.00 GiB at 2023-11-14 22:13:20 UTC", "twice; cached memory went back", "MiB an hour, a leak if it goes on",
        "512.00 MiB  tag weights"}) {
    EXPECT_NE(text.find(expected), std::string::npos) << expected << "\n" << text;
  }
  EXPECT_EQ(to_text(summary, 0, Style{}).find("process"), std::string::npos) << "no rows were asked for";
  const auto json = nlohmann::json::parse(
      to_json("night.jsonl", RecordHeader{.version = 1, .cachalot = "0.1.0", .started = 5, .interval_s = 60}, summary));
  EXPECT_EQ(json["record"]["samples"], 100);
  EXPECT_EQ(json["devices"][0]["peak_reserved_bytes"], 3 * kGiB);
  EXPECT_EQ(json["devices"][0]["growth"]["is_certain"], true);
  EXPECT_EQ(json["devices"][0]["pools"][1]["name"], "tag weights");
}

TEST(RecordReport, TimesThatARecordMakesUpAreNoTimes) {
  for (const double time : {-1e300, 1e300}) {
    const RecordSummary summary = summary_of([&](int) { return sample_at(time, kGiB, kGiB); }, 3);
    EXPECT_NE(to_text(summary, 10, Style{}).find("an unknown time"), std::string::npos);
  }
}

}  // namespace
}  // namespace cachalot::tools::live
