// `cachalot top` as its users run it, beside this process, which publishes.
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/top/testing.h"
#include "tools/base/descriptor.h"
#include "tools/base/text_layout.h"
#include "tools/live/sample.h"
#include "tools/live/sample_formats.h"
#include "tools/live/sample_series.h"

namespace cachalot::tools::live {
namespace {

TEST(Top, ShowsAProgramWithItsPoolsTagsRatesAndSleep) {
  const PageFolder folder;
  Program program(folder);
  program.world.allocator.release_physical("weights");
  program.publisher.refresh();
  const Outcome outcome = top(folder, "--once --interval 0.3");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "");
  EXPECT_NE(outcome.out.find("1 process, by reserved memory, every 0.3 s"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find(std::to_string(getpid()) + "   0 100.00 MiB 612.00 MiB"), std::string::npos)
      << outcome.out;
  EXPECT_NE(outcome.out.find("tag weights, 512.00 MiB asleep"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("100.00 MiB 100.00 MiB  default, "), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find('\033'), std::string::npos);
}

TEST(Top, JsonHasOneObjectForEachSample) {
  const PageFolder folder;
  Program program(folder);
  const Outcome outcome = top(folder, "--json --count 3 --interval 0.2");
  EXPECT_EQ(outcome.exit_code, 0);
  std::istringstream lines(outcome.out);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const auto json = nlohmann::json::parse(line);
    ASSERT_EQ(json.at("processes").size(), 1u);
    const auto& device = json["processes"][0]["devices"][0];
    EXPECT_EQ(device["allocated_bytes"], 612 * kMiB);
    EXPECT_EQ(device["pools"][1]["tag"], "weights");
    EXPECT_EQ(device["pools"][1]["used_bytes"], 512 * kMiB);
  }
  EXPECT_EQ(count, 3);
}

TEST(Top, WritesForPrometheusWithoutATable) {
  const PageFolder folder;
  const PageFolder out;
  Program program(folder);
  const Outcome outcome =
      top(folder, "--quiet --count 2 --interval 0.1 --prometheus-textfile '" + out.path() + "/c.prom'");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_NE(read_whole(out.path() + "/c.prom").find("cachalot_processes 1\n"), std::string::npos);
}

TEST(Top, WritesAPageOfItsSamples) {
  const PageFolder folder;
  const PageFolder out;
  const Program program(folder);
  const std::string path = out.path() + "/top.html";
  const Outcome outcome = top(folder, "--quiet --count 2 --interval 0.1 --html '" + path + "'");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_TRUE(read_whole(path).starts_with("<!doctype html>"));
  const Outcome refused = top(folder, "--quiet --count 1 --html /nonexistent/top.html");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("/nonexistent/top.html"), std::string::npos) << refused.err;
}

TEST(SampleSeries, KeepsTheMostOfLongSeriesAndTheNewestOfMany) {
  SampleSeries series;
  constexpr std::size_t kSamples = 4 * SampleSeries::kMostPoints + 3;
  for (std::size_t i = 0; i < kSamples; ++i) series.add(sample_at(static_cast<double>(i), i, i));
  const Section report = series.report();
  ASSERT_EQ(report.parts.size(), 1u);
  const auto& table = std::get<Table>(report.parts.front().content);
  EXPECT_TRUE(table.is_chart);
  EXPECT_EQ(table.title, "Memory over time, process 4711, device 0");
  EXPECT_EQ(table.note, "a point is the most of 8 samples");
  ASSERT_EQ(table.rows.size(), kSamples / 8 + 1);
  EXPECT_EQ(table.rows.front()[1].value, 7u);
  EXPECT_EQ(table.rows.back()[0].value, static_cast<double>(kSamples - 1));
  EXPECT_EQ(table.rows.back()[2].value, kSamples - 1);
  Sample other = sample_at(1e9, kGiB, kGiB);
  for (std::uint64_t pid = 1; pid <= SampleSeries::kMostSeries; ++pid) {
    other.processes[0].pid = pid;
    series.add(other);
  }
  EXPECT_EQ(series.report().parts.size(), SampleSeries::kMostSeries) << "the first has ended";
  EXPECT_EQ(std::get<Table>(series.report().parts.back().content).rows.size(), 1u);
}

TEST(Top, ShowsTheProcessesThatAreAskedFor) {
  const PageFolder folder;
  Program program(folder);
  const std::string none = top(folder, "--once --interval 0.1 --pid 1").out;
  EXPECT_NE(none.find("No process publishes statistics"), std::string::npos) << none;
  const Outcome one = top(folder, "--json --count 1 --interval 0.1 --pid 1 --pid " + std::to_string(getpid()));
  EXPECT_EQ(nlohmann::json::parse(one.out)["processes"].size(), 1u);
}

TEST(Top, BadOptionsAreOneErrorThatNamesThem) {
  const PageFolder folder;
  for (const char* bad :
       {"--interval 0", "--count 0", "--prometheus-port 70000", "--once --count 2",
        "--prometheus-port 0 --prometheus-address here", "--prometheus-textfile /nonexistent/r", "extra"}) {
    const Outcome outcome = top(folder, std::string(bad) + " --quiet");
    EXPECT_EQ(outcome.exit_code, 2) << bad;
    EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << bad << ": " << outcome.err;
  }
  EXPECT_NE(run_command(std::string("'") + CACHALOT_COMMAND + "' top --once --directory /nonexistent")
                .err.find("/nonexistent"),
            std::string::npos);
}

TEST(Top, ServesPrometheusUntilASignalEndsIt) {
  const PageFolder folder;
  Program program(folder);
  const std::string command =
      std::string("'") + CACHALOT_COMMAND + "' top --quiet --prometheus-port 0 --directory '" + folder.path() +
      "' 2>'" + folder.path() + "/err' & pid=$!; " + "for i in $(seq 100); do grep -q serving '" + folder.path() +
      "/err' && break; sleep 0.05; done; " + "port=$(sed 's/.*:\\([0-9]*\\).*/\\1/' '" + folder.path() + "/err'); " +
      "exec 3<>/dev/tcp/127.0.0.1/$port; printf 'GET /metrics HTTP/1.1\\r\\n\\r\\n' >&3; cat <&3; " +
      "kill $pid; wait $pid; echo exit $?";
  std::string quoted;
  for (const char c : command) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  const Outcome outcome = run_command("bash -c '" + quoted + "'");
  EXPECT_NE(outcome.out.find("cachalot_processes 1\n"), std::string::npos) << outcome.out << outcome.err;
  EXPECT_TRUE(outcome.out.ends_with("exit 0\n")) << outcome.out;
}

// The command on a terminal, which the test holds the other end of.
class OnTerminal {
 public:
  explicit OnTerminal(const PageFolder& folder) {
    winsize size{.ws_row = 30, .ws_col = 90, .ws_xpixel = 0, .ws_ypixel = 0};
    int end = -1;
    child_ = forkpty(&end, nullptr, nullptr, &size);
    if (child_ == 0) {
      setenv("TERM", "xterm", 1);
      execl(CACHALOT_COMMAND, CACHALOT_COMMAND, "top", "--interval", "0.2", "--directory", folder.path().c_str(),
            nullptr);
      _exit(127);
    }
    end_ = Descriptor(end);
  }
  // Reads until the text comes; "" if it does not.
  bool shows(const std::string& text) {
    for (int i = 0; i < 200; ++i) {
      if (shown_.find(text) != std::string::npos) return true;
      pollfd polled{end_.number(), POLLIN, 0};
      if (poll(&polled, 1, 100) <= 0) continue;
      char bytes[4096];
      const ssize_t count = read(end_.number(), bytes, sizeof(bytes));
      if (count <= 0) break;
      shown_.append(bytes, static_cast<std::size_t>(count));
    }
    return shown_.find(text) != std::string::npos;
  }
  void forget() { shown_.clear(); }
  void press(char key) { EXPECT_EQ(write(end_.number(), &key, 1), 1); }
  void send(int signal) const { kill(child_, signal); }
  bool echoes() const {
    termios now{};
    tcgetattr(end_.number(), &now);
    return (now.c_lflag & ECHO) != 0;
  }
  int exit_code() {
    shows("\033[?1049l");
    int status = -1;
    waitpid(child_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t child_ = -1;
  Descriptor end_;
  std::string shown_;
};

TEST(TopOnATerminal, KeysChangeWhatIsShownAndQEndsIt) {
  const PageFolder folder;
  Program program(folder);
  OnTerminal terminal(folder);
  EXPECT_TRUE(terminal.shows("tag weights"));
  EXPECT_TRUE(terminal.shows("by reserved memory"));
  EXPECT_FALSE(terminal.echoes());
  terminal.press('s');
  EXPECT_TRUE(terminal.shows("by allocated memory"));
  terminal.press('t');
  terminal.press('s');
  EXPECT_TRUE(terminal.shows("by allocations per s"));
  terminal.forget();
  EXPECT_TRUE(terminal.shows("q quit"));
  terminal.press('q');
  EXPECT_EQ(terminal.exit_code(), 0);
  EXPECT_TRUE(terminal.shows("\033[?25h\033[?1049l")) << "cursor and screen are as before";
  EXPECT_TRUE(terminal.echoes());
}

TEST(TopOnATerminal, SignalsRestoreTheTerminal) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) {
    const PageFolder folder;
    OnTerminal terminal(folder);
    EXPECT_TRUE(terminal.shows("q quit"));
    terminal.send(signal);
    EXPECT_EQ(terminal.exit_code(), 0) << signal;
    EXPECT_TRUE(terminal.shows("\033[?25h\033[?1049l")) << signal;
    EXPECT_TRUE(terminal.echoes()) << signal;
  }
}

TEST(TopOnATerminal, StopsAndGoesOn) {
  const PageFolder folder;
  OnTerminal terminal(folder);
  EXPECT_TRUE(terminal.shows("q quit"));
  terminal.send(SIGTSTP);
  EXPECT_TRUE(terminal.shows("\033[?1049l"));
  EXPECT_TRUE(cachalot::testing::becomes([&] { return terminal.echoes(); }));
  terminal.forget();
  terminal.send(SIGCONT);
  EXPECT_TRUE(terminal.shows("\033[?1049h"));
  EXPECT_TRUE(terminal.shows("q quit"));
  terminal.press('q');
  EXPECT_EQ(terminal.exit_code(), 0);
}

TEST(TopText, HostileTextsDoNotReachTheTerminal) {
  Sample sample = sample_at(1000, kGiB, kGiB);
  sample.processes[0].command =
      "\033]0;owned\007\xc2\x9b"
      "31m";
  std::strcpy(sample.processes[0].devices[0].page.pools[0].tag, "\033[2J\n and what is longer than a name may be");
  sample.gpus = {gpu_of(0, "T\0334", {{4711, 5}})};
  const std::string text = to_text(sample, {}, 1, {}, Style());
  for (const char c : text) EXPECT_TRUE(c == '\n' || (c >= 0x20 && c < 0x7f)) << static_cast<int>(c);
  EXPECT_NE(text.find("\\x1b]0;owned\\x07\\xc2\\x9b31m"), std::string::npos) << text;
}

TEST(SampleJson, HasTextsThatAreNoUtf8AndWhatIsNotKnownIsNull) {
  Sample sample = sample_at(1000.5, kGiB, 2 * kGiB);
  sample.processes[0].command = "python \"tra\xefin\".py\n\x1b[31m";
  sample.processes[0].devices[0].page.limit_bytes = 7;
  sample.processes[0].devices[0].rates = Rates{1.5, 2, 3, 4};
  sample.gpus = {gpu_of(1, "T4", {{4711, std::nullopt}})};
  const auto json = nlohmann::json::parse(text_of(json_of(report_of(sample))));
  EXPECT_EQ(json["time"], 1000.5);
  EXPECT_EQ(json["processes"][0]["command"], "python \"tra\xef\xbf\xbdin\".py\n\x1b[31m");
  const auto& device = json["processes"][0]["devices"][0];
  EXPECT_EQ(device["limit_bytes"], 7);
  EXPECT_TRUE(device["soft_limit_bytes"].is_null());
  EXPECT_EQ(device["rates"]["allocations_per_s"], 1.5);
  EXPECT_TRUE(device["pools"][0]["tag"].is_null());
  EXPECT_TRUE(json["gpus"][0]["processes"][0]["used_bytes"].is_null());
}

TEST(TopText, ShowsOtherProcessesOfAGpuAsNvmlHasThem) {
  Sample sample = sample_at(1000, kGiB, 2 * kGiB);
  sample.gpus = {gpu_of(3, "T4", {{4711, 3 * kGiB}, {8, std::nullopt}})};
  const std::string text = to_text(sample, {}, 1, {"a note"}, Style());
  EXPECT_NE(text.find("GPU 3  T4  5.00 GiB of 16.00 GiB in use, 2 processes\n"), std::string::npos) << text;
  EXPECT_NE(text.find("4711         3.00 GiB  python train.py\n"), std::string::npos) << text;
  EXPECT_NE(text.find("8          unknown  publishes no statistics\n"), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with("a note\n"));
  TopView without;
  without.shows_gpus = false;
  EXPECT_EQ(to_text(sample, without, 1, {}, Style()).find("GPU 3"), std::string::npos);
}

TEST(TopText, IsCutToTheScreen) {
  EXPECT_EQ(cut_to_screen("\033[1mabcdef\033[0m\nxy\nz\n", 2, 3), "\033[1mabc\033[0m\nxy\n");
  EXPECT_EQ(cut_to_screen("abc", 0, 10), "");
  EXPECT_EQ(cut_to_screen("abc\033[1", 5, 10), "abc\033[1");
}

TEST(RateMeter, TellsWhatHappenedASecond) {
  RateMeter meter;
  Sample first = sample_at(1000, kGiB, kGiB);
  first.processes[0].refreshes = 1;
  meter.measure(first);
  EXPECT_FALSE(first.processes[0].devices[0].rates.has_value());
  Sample second = first;
  second.processes[0].refreshes = 3;
  second.processes[0].elapsed_s = 2;
  second.processes[0].devices[0].page.allocations += 100;
  second.processes[0].devices[0].page.allocated_sum_bytes += kMiB;
  second.processes[0].devices[0].page.device_allocations += 3;
  second.processes[0].devices[0].page.device_frees += 1;
  meter.measure(second);
  ASSERT_TRUE(second.processes[0].devices[0].rates.has_value());
  EXPECT_EQ(second.processes[0].devices[0].rates->allocations, 50);
  EXPECT_EQ(second.processes[0].devices[0].rates->allocated_bytes, kMiB / 2.0);
  EXPECT_EQ(second.processes[0].devices[0].rates->driver_calls, 2);
  Sample same = second;
  same.processes[0].devices[0].rates.reset();
  meter.measure(same);
  EXPECT_EQ(same.processes[0].devices[0].rates->allocations, 50) << "not refreshed: the rates of before";
  Sample reset = same;
  reset.processes[0].refreshes = 9;
  reset.processes[0].elapsed_s = 3;
  reset.processes[0].devices[0].page.allocations = 0;
  meter.measure(reset);
  EXPECT_FALSE(reset.processes[0].devices[0].rates.has_value()) << "reset_accumulated_stats came between";
  Sample other = reset;
  other.processes[0].start = 5;
  meter.measure(other);
  EXPECT_FALSE(other.processes[0].devices[0].rates.has_value()) << "another process of the same number";
}

}  // namespace
}  // namespace cachalot::tools::live
