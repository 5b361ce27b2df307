#include "tools/live/top.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <memory>

#include "tools/commands/command.h"
#include "tools/json_text.h"
#include "tools/live/nvml.h"
#include "tools/live/page_reader.h"
#include "tools/live/prometheus.h"
#include "tools/live/prometheus_server.h"
#include "tools/live/rate_meter.h"
#include "tools/live/sample_json.h"
#include "tools/live/terminal_screen.h"
#include "tools/live/top_text.h"

namespace cachalot::tools::live {
namespace {

using Clock = std::chrono::steady_clock;

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

class Top {
 public:
  Top(const TopOptions& options, const Styles& styles)
      : options_(options), styles_(styles), directory_(page_directory(options.directory)), nvml_(Nvml::load()) {
    take();  // refuses what cannot be read before anything is written
    if (options_.port) {
      server_ = std::make_unique<PrometheusServer>(options_.address, *options_.port);
      server_->set_text(to_prometheus(sample_));
      tell(fmt::format("cachalot: serving http://{}/metrics\n", server_->name()));
    }
    if (!options_.textfile.empty()) write_textfile(options_.textfile, to_prometheus(sample_));
    const bool is_screen = !options_.json && !options_.quiet && options_.count == 0 && TerminalScreen::is_possible();
    signals_ = std::make_unique<SignalQueue>(is_screen);
    if (is_screen) screen_ = std::make_unique<TerminalScreen>();
  }

  int run() {
    // Rates need two samples. Who waits at a terminal sees the first at once.
    next_ = Clock::now();
    if (screen_) {
      give();
    } else if (sample_.processes.empty()) {
      next_ -= interval();
    }
    for (std::uint64_t given = 0; options_.count == 0 || given < options_.count; ++given) {
      if (!wait()) return 0;
      take();
      give();
      if (std::ferror(stdout) != 0) return 0;  // the command line says so
    }
    return 0;
  }

 private:
  Clock::duration interval() const {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.interval_s));
  }

  void take() {
    ReadPages pages = read_pages(directory_);
    sample_ = {};
    sample_.time = unix_time();
    sample_.processes = std::move(pages.processes);
    if (!options_.pids.empty()) {
      std::erase_if(sample_.processes, [&](const ProcessSample& process) {
        return std::ranges::find(options_.pids, process.pid) == options_.pids.end();
      });
    }
    if (nvml_) sample_.gpus = nvml_->gpus();
    meter_.measure(sample_);
    notes_ = std::move(pages.refused);
  }

  void give() {
    if (!options_.textfile.empty() || server_) {
      const std::string text = to_prometheus(sample_);
      if (!options_.textfile.empty()) write_textfile(options_.textfile, text);
      if (server_) server_->set_text(text);
    }
    show();
  }

  void show() {
    if (screen_) {
      screen_->show(
          to_text(sample_, view_, options_.interval_s, notes_, styles_.out) +
          (screen_->has_keys() ? styles_.out.faint("q quit  p pools  t tags  d devices  s sort") + "\n" : ""));
    } else if (options_.json) {
      print(text_of(to_json(sample_)) + "\n");
    } else if (!options_.quiet) {
      print(to_text(sample_, view_, options_.interval_s, notes_, styles_.out));
    }
  }

  // Waits for the next sample's time; serves meanwhile. Returns false if the command is to end.
  bool wait() {
    next_ = std::max(next_ + interval(), Clock::now());
    while (Clock::now() < next_) {
      std::vector<pollfd> polled = {{signals_->descriptor(), POLLIN, 0}};
      if (screen_ && screen_->has_keys()) polled.push_back({STDIN_FILENO, POLLIN, 0});
      if (server_) server_->add_to(polled);
      const auto rest = std::chrono::ceil<std::chrono::milliseconds>(next_ - Clock::now());
      poll(polled.data(), polled.size(), static_cast<int>(std::clamp<std::int64_t>(rest.count(), 0, 1000)));
      if (server_) server_->serve();
      if (!heed_signals() || !heed_keys()) return false;
    }
    return true;
  }

  bool heed_signals() {
    while (const std::optional<int> signal = signals_->next()) {
      if (*signal == SIGWINCH) {
        show();
      } else if (*signal == SIGTSTP) {
        screen_->leave();
        kill(getpid(), SIGSTOP);
        screen_->enter();
        show();
      } else {
        return false;
      }
    }
    return true;
  }

  bool heed_keys() {
    while (const std::optional<char> key = screen_ ? screen_->key() : std::nullopt) {
      switch (*key) {
        case 'q':
          return false;
        case 'p':
          view_.shows_pools = !view_.shows_pools;
          break;
        case 't':
          view_.shows_tags = !view_.shows_tags;
          break;
        case 'd':
          view_.shows_gpus = !view_.shows_gpus;
          break;
        case 's':
          view_.order = next_of(view_.order);
          break;
        default:
          continue;
      }
      show();
    }
    return true;
  }

  const TopOptions& options_;
  const Styles& styles_;
  const std::string directory_;
  const std::unique_ptr<Nvml> nvml_;
  Sample sample_;
  RateMeter meter_;
  std::vector<std::string> notes_;
  TopView view_;
  Clock::time_point next_;
  std::unique_ptr<PrometheusServer> server_;
  std::unique_ptr<SignalQueue> signals_;
  std::unique_ptr<TerminalScreen> screen_;  // ends first: signals wait until the terminal is restored
};

}  // namespace

int run_top(const TopOptions& options, const Styles& styles) {
  std::signal(SIGPIPE, SIG_IGN);  // a reader of a pipe may go
  return Top(options, styles).run();
}

}  // namespace cachalot::tools::live
