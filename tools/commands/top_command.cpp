// `cachalot top`: shows the memory of running programs.
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>

#include "cachalot/errors.h"
#include "tools/commands/command.h"
#include "tools/live/top.h"

namespace cachalot::tools {
namespace {

class TopCommand : public Command {
 public:
  const CommandText& text() const override {
    static const CommandText text = {
        .name = "top",
        .usage = "[OPTIONS]",
        .summary = "Show the GPU memory of running programs: pools, tags, fragmentation, rates and sleep",
        .details =
            "Shows programs that publish statistics: those with CACHALOT_PUBLISH=1 in their environment, or that call "
            "cachalot.publish() in Python, cachalot_publish() in C or make a StatisticsPublisher in C++. Where NVML, "
            "the "
            "library of nvidia-smi, is installed, it also shows the memory of each GPU and of all its processes.\n\n"
            "On a terminal the table is renewed each second. Keys: q quits; p, t and d show or hide pools, tags and "
            "devices; s changes the order. Elsewhere a table is printed each second.\n\n"
            "The exit code is 0, also after a signal that ends the command, or 2 after an error, which one line on "
            "standard error tells.",
        .examples = {
            {"The programs of this machine:", "cachalot top"},
            {"One table, for a script:", "cachalot top --once"},
            {"A record of a night, one line for each sample:", "cachalot top --json --interval 10 > night.jsonl"},
            {"A source for Prometheus:", "cachalot top --quiet --prometheus-port 9400"}}};
    return text;
  }

  void declare(CLI::App& app) override {
    app.add_option("--interval", options_.interval_s, "The time between two samples")
        ->type_name("SECONDS")
        ->check(CLI::Range(0.05, 86400.0))
        ->capture_default_str();
    app.add_option("--count", options_.count, "End after so many samples")
        ->type_name("N")
        ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 53));
    app.add_flag("--once", once_, "Print one table, of rates over one interval, and end");
    app.add_option("--pid", options_.pids, "Show this process only; may be given several times")
        ->type_name("PID")
        ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 22));
    app.add_flag("--json", options_.json, "Print one JSON object for each sample, each on one line");
    app.add_flag("--quiet", options_.quiet, "Print nothing, for Prometheus");
    app.add_option("--prometheus-textfile", options_.textfile,
                   "Replace this file after each sample, for the textfile collector of Prometheus's node_exporter")
        ->type_name("FILE");
    app.add_option("--prometheus-port", port_, "Serve http://ADDRESS:PORT/metrics for Prometheus; 0: any free port")
        ->type_name("PORT");
    app.add_option("--prometheus-address", options_.address,
                   "The address to serve at; others than this machine reach it "
                   "if it is 0.0.0.0")
        ->type_name("ADDRESS")
        ->capture_default_str();
    app.add_option("--directory", options_.directory,
                   "The folder of the statistics pages; by default CACHALOT_PUBLISH_DIR, or /dev/shm")
        ->type_name("DIR");
  }

  int run(const Styles& styles) override {
    if (once_ && options_.count > 1) {
      throw InvalidArgument(fmt::format("--once and --count {} are at odds: give one of them", options_.count));
    }
    if (once_) options_.count = 1;
    if (!std::isfinite(options_.interval_s)) throw InvalidArgument("--interval: the time must be a number of seconds");
    if (port_) {
      constexpr int kMostPort = 65535;
      if (*port_ < 0 || *port_ > kMostPort) {
        throw InvalidArgument(fmt::format("--prometheus-port {} is no port: they are 0 to {}", *port_, kMostPort));
      }
      options_.port = static_cast<std::uint16_t>(*port_);
    }
    return live::run_top(options_, styles);
  }

 private:
  live::TopOptions options_;
  std::optional<int> port_;
  bool once_ = false;
};

}  // namespace

std::unique_ptr<Command> make_top_command() { return std::make_unique<TopCommand>(); }

}  // namespace cachalot::tools
