// `cachalot top`: shows the memory of running programs.
#include <dlfcn.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/environment.h"
#include "cachalot/errors.h"
#include "diagnostics/process_publisher.h"
#include "tools/base/descriptor.h"
#include "tools/base/output_file.h"
#include "tools/base/text_layout.h"
#include "tools/commands/command.h"
#include "tools/live/prometheus_server.h"
#include "tools/live/sample.h"
#include "tools/live/sample_formats.h"
#include "tools/live/sample_series.h"
#include "tools/output/html_report.h"

namespace cachalot::tools::live {
namespace {

struct TopOptions {
  std::string directory;  // of pages; "": publish_directory
  double interval_s = 1;
  std::uint64_t count = 0;          // samples; 0: until it is ended
  std::vector<std::uint64_t> pids;  // of the processes; empty: all
  bool json = false;
  bool quiet = false;
  std::string html;      // a file; "": no page
  std::string textfile;  // of Prometheus; "": none
  std::optional<std::uint16_t> port;
  std::string address = "127.0.0.1";
};

// NVML's types, as its header has them; the header itself is not needed.
constexpr int kMissing = -1;  // not NVML's
constexpr int kSuccess = 0;
constexpr int kInsufficientSize = 7;
constexpr unsigned kMostGpus = 1024;
constexpr unsigned kMostListed = 1U << 16;
constexpr auto kNotAvailable = ~0ULL;  // NVML_VALUE_NOT_AVAILABLE

struct MemoryV1 {
  unsigned long long total, free, used;
};
struct MemoryV2 {
  unsigned version = sizeof(MemoryV2) | 2U << 24;
  unsigned long long total = 0, reserved = 0, free = 0, used = 0;
};
struct ProcessV3 {  // nvmlProcessInfo_t of the functions that end in _v3
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};

// NVML, the library of nvidia-smi, reports the GPUs' memory and the processes that use it. It is loaded at run time.
class Nvml {
 public:
  // Returns null where the library is missing or does not start.
  static std::unique_ptr<Nvml> load() {
    void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return nullptr;
    std::unique_ptr<Nvml> nvml(new Nvml(library));
    return nvml->call("nvmlInit_v2") == kSuccess ? std::move(nvml) : nullptr;
  }

  // The library stays loaded: it may have threads.
  ~Nvml() { call("nvmlShutdown"); }

  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // Returns the GPUs whose memory NVML tells. Where it does not tell the processes of one, that has none.
  std::vector<GpuSample> gpus() const {
    std::vector<GpuSample> gpus;
    unsigned count = 0;
    if (call("nvmlDeviceGetCount_v2", &count) != kSuccess) return gpus;
    for (unsigned i = 0; i < std::min(count, kMostGpus); ++i) {
      void* device = nullptr;
      if (call("nvmlDeviceGetHandleByIndex_v2", i, &device) != kSuccess) continue;
      GpuSample gpu;
      gpu.index = static_cast<int>(i);
      gpu.name = text("nvmlDeviceGetName", device);
      gpu.uuid = text("nvmlDeviceGetUUID", device);
      if (gpu.uuid.starts_with("GPU-")) gpu.uuid.erase(0, 4);
      if (!read_memory(device, gpu)) continue;
      read_processes(device, gpu);
      gpus.push_back(std::move(gpu));
    }
    return gpus;
  }

 private:
  explicit Nvml(void* library) : library_(library) {}

  // Calls a function, whose parameters have the types of the arguments. Returns its result; kMissing without one.
  template <typename... Arguments>
  int call(const char* name, Arguments... arguments) const {
    auto* const function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library_, name));
    return function == nullptr ? kMissing : function(arguments...);
  }

  std::string text(const char* function, void* device) const {
    char text[128] = "";
    if (call(function, device, &text[0], unsigned{sizeof(text)}) != kSuccess) return "";
    text[sizeof(text) - 1] = '\0';
    return text;
  }

  // A process with memory may be in several of NVML's lists.
  void read_processes(void* device, GpuSample& gpu) const {
    for (const char* name : {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3",
                             "nvmlDeviceGetMPSComputeRunningProcesses_v3"}) {
      std::vector<ProcessV3> found(64);
      auto count = static_cast<unsigned>(found.size());
      int result = call(name, device, &count, found.data());
      while (result == kInsufficientSize && found.size() < kMostListed) {
        found.resize(std::min<std::size_t>(2 * std::max<std::size_t>(count, found.size()), kMostListed));
        count = static_cast<unsigned>(found.size());
        result = call(name, device, &count, found.data());
      }
      if (result != kSuccess) continue;
      for (const ProcessV3& each : std::span(found).first(std::min<std::size_t>(count, found.size()))) {
        if (std::ranges::find(gpu.processes, each.pid, &GpuProcess::pid) != gpu.processes.end()) continue;
        gpu.processes.push_back(
            {each.pid, each.used == kNotAvailable ? std::nullopt : std::optional<std::uint64_t>(each.used)});
      }
    }
    std::ranges::sort(gpu.processes, {}, &GpuProcess::pid);
  }

  // The older function counts memory reserved for the driver as used.
  bool read_memory(void* device, GpuSample& gpu) const {
    const auto read = [&](const char* function, auto memory) {
      if (call(function, device, &memory) != kSuccess) return false;
      gpu.total_bytes = memory.total;
      gpu.used_bytes = memory.used;
      return true;
    };
    return read("nvmlDeviceGetMemoryInfo_v2", MemoryV2{}) || read("nvmlDeviceGetMemoryInfo", MemoryV1{});
  }

  void* const library_;
};

// xterm's sequences, which every terminal of today knows.
constexpr std::string_view kEnter = "\033[?1049h\033[?25l";  // the alternate screen, without a cursor
constexpr std::string_view kLeave = "\033[?25h\033[?1049l";
constexpr std::string_view kHome = "\033[H";
constexpr std::string_view kEndOfLine = "\033[K";
constexpr std::string_view kRestOfScreen = "\033[J";

// The terminal while `cachalot top` shows its tables there: a screen of its own, and keys that come at once.
//
// The destructor restores what was before. Signals that end or stop a program come to SignalQueue, so that it runs.
class TerminalScreen {
 public:
  TerminalScreen() { enter(); }
  ~TerminalScreen() { leave(); }
  TerminalScreen(const TerminalScreen&) = delete;
  TerminalScreen& operator=(const TerminalScreen&) = delete;

  // Returns whether standard output is a terminal that can show a screen.
  static bool is_possible() {
    const std::string_view name = environment("TERM").value_or("");
    return isatty(STDOUT_FILENO) == 1 && !name.empty() && name != "dumb";
  }

  // Signals by keys (Ctrl-C, Ctrl-Z) stay on.
  void enter() {
    termios now{};
    if (isatty(STDIN_FILENO) == 1 && tcgetattr(STDIN_FILENO, &now) == 0) {
      before_ = now;
      now.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
      now.c_cc[VMIN] = 0;
      now.c_cc[VTIME] = 0;
      tcsetattr(STDIN_FILENO, TCSANOW, &now);
    }
    print(kEnter);
  }

  void leave() {
    print(kLeave);
    if (before_) tcsetattr(STDIN_FILENO, TCSANOW, &*before_);
    before_.reset();
  }

  // Shows the lines, as many as there is room for, in place of those before.
  void show(const std::string& text) const {
    winsize size{};
    const bool is_known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 1 && size.ws_col > 0;
    const std::size_t rows = is_known ? size.ws_row - 1U : 23;
    const std::size_t columns = is_known ? size.ws_col : 80;
    std::string screen(kHome);
    for (const char c : cut_to_screen(text, rows, columns)) {
      if (c == '\n') screen += kEndOfLine;
      screen += c;
    }
    screen += kRestOfScreen;
    print(screen);
  }

  // Returns whether keys can be read: standard input is a terminal, too.
  bool has_keys() const { return before_.has_value(); }

  // Returns the key that was pressed; nullopt if there is none.
  std::optional<char> key() const {
    char key = 0;
    return has_keys() && read(STDIN_FILENO, &key, 1) == 1 ? std::optional(key) : std::nullopt;
  }

 private:
  std::optional<termios> before_;  // of standard input, where that is a terminal
};

// The signals that end, stop or tell a program, while one exists: they are queued instead of acting.
class SignalQueue {
 public:
  explicit SignalQueue(bool with_terminal) {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) sigaddset(&signals, signal);
    if (with_terminal) {
      for (const int signal : {SIGWINCH, SIGTSTP}) sigaddset(&signals, signal);
    }
    pthread_sigmask(SIG_BLOCK, &signals, &before_);
    descriptor_ = Descriptor(signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC));
  }

  ~SignalQueue() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  int descriptor() const { return descriptor_.number(); }

  // Returns the next signal; nullopt if none has come.
  std::optional<int> next() const {
    signalfd_siginfo info{};
    const ssize_t count = read(descriptor_.number(), &info, sizeof(info));
    return count == sizeof(info) ? std::optional(static_cast<int>(info.ssi_signo)) : std::nullopt;
  }

 private:
  sigset_t before_{};
  Descriptor descriptor_;
};

using Clock = std::chrono::steady_clock;

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

class Top {
 public:
  Top(const TopOptions& options, const Styles& styles)
      : options_(options), styles_(styles), directory_(publish_directory(options.directory)), nvml_(Nvml::load()) {
    take();  // refuses what cannot be read before anything is written
    if (options_.port) server_ = std::make_unique<PrometheusServer>(options_.address, *options_.port);
    give_to_prometheus();
    if (server_) tell(fmt::format("cachalot: serving http://{}/metrics\n", server_->name()));
    write_page();
    const bool is_screen = !options_.json && !options_.quiet && options_.count == 0 && TerminalScreen::is_possible();
    signals_ = std::make_unique<SignalQueue>(is_screen);
    if (is_screen) screen_ = std::make_unique<TerminalScreen>();
  }

  // Returns 0 after `count` samples, when q is pressed, and after a signal that ends programs.
  int run() {
    give_samples();
    write_page();
    return 0;
  }

 private:
  void give_samples() {
    // Rates need two samples. A user at a terminal sees the first at once.
    next_ = Clock::now();
    if (screen_) {
      give();
    } else if (sample_.processes.empty()) {
      next_ -= interval();
    }
    for (std::uint64_t given = 0; options_.count == 0 || given < options_.count; ++given) {
      if (!wait()) return;
      take();
      give();
      if (std::ferror(stdout) != 0) return;  // the command line says so
    }
  }

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
    if (!options_.html.empty()) series_.add(sample_);
    notes_ = std::move(pages.refused);
  }

  void give() {
    give_to_prometheus();
    show();
  }

  void show() {
    if (screen_) {
      screen_->show(
          to_text(sample_, view_, options_.interval_s, notes_, styles_.out) +
          (screen_->has_keys() ? styles_.out.faint("q quit  p pools  t tags  d devices  s sort") + "\n" : ""));
    } else if (options_.json) {
      print(text_of(json_of(report_of(sample_))) + "\n");
    } else if (!options_.quiet) {
      print(to_text(sample_, view_, options_.interval_s, notes_, styles_.out));
    }
  }

  // Readers of the file, such as node_exporter's textfile collector, see the old text or the new one.
  void give_to_prometheus() const {
    if (options_.textfile.empty() && !server_) return;
    const std::string text = to_prometheus(sample_);
    if (!options_.textfile.empty()) write_output(options_.textfile, "--prometheus-textfile", text);
    if (server_) server_->set_text(text);
  }

  // Has the devices over all samples, and all that the last one says.
  void write_page() const {
    if (options_.html.empty()) return;
    HtmlReport page{.title = "GPU memory of running programs", .command = "cachalot top", .answer = series_.report()};
    page.answer.add(report_of(sample_));
    write_html_report(options_.html, page, built_in_rules());
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
      bool TopView::*const shown = *key == 'p'   ? &TopView::shows_pools
                                   : *key == 't' ? &TopView::shows_tags
                                   : *key == 'd' ? &TopView::shows_gpus
                                                 : nullptr;
      if (*key == 'q') return false;
      if (*key == 's') view_.order = next_of(view_.order);
      if (shown != nullptr) view_.*shown = !(view_.*shown);
      if (*key == 's' || shown != nullptr) show();
    }
    return true;
  }

  const TopOptions& options_;
  const Styles& styles_;
  const std::string directory_;
  const std::unique_ptr<Nvml> nvml_;
  Sample sample_;
  RateMeter meter_;
  SampleSeries series_;
  std::vector<std::string> notes_;
  TopView view_;
  Clock::time_point next_;
  std::unique_ptr<PrometheusServer> server_;
  std::unique_ptr<SignalQueue> signals_;
  std::unique_ptr<TerminalScreen> screen_;  // ends first: signals wait until the terminal is restored
};

}  // namespace

}  // namespace cachalot::tools::live

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
            {"A page of ten minutes:", "cachalot top --quiet --count 600 --html top.html"},
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
    app.add_option("--directory", options_.directory,
                   "The folder of the statistics pages; by default CACHALOT_PUBLISH_DIR, or /dev/shm")
        ->type_name("DIR");
    app.option_defaults()->group(kOutputOptions);
    app.add_flag("--json", options_.json, "Print one JSON object for each sample, each on one line");
    app.add_flag("--quiet", options_.quiet, "Print nothing, for a page or Prometheus");
    app.add_option("--html", options_.html, "Also write a page for a browser at the end, of all samples")
        ->type_name("FILE");
    app.option_defaults()->group("Options for Prometheus");
    app.add_option("--prometheus-textfile", options_.textfile,
                   "Replace this file after each sample, for the textfile collector of Prometheus's node_exporter")
        ->type_name("FILE");
    app.add_option("--prometheus-port", port_, "Serve http://ADDRESS:PORT/metrics for Prometheus; 0: any free port")
        ->type_name("PORT");
    app.add_option("--prometheus-address", options_.address,
                   "The address to serve at; others than this machine reach it if it is 0.0.0.0")
        ->type_name("ADDRESS")
        ->capture_default_str();
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
    std::signal(SIGPIPE, SIG_IGN);  // a reader of a pipe may go
    return live::Top(options_, styles).run();
  }

 private:
  live::TopOptions options_;
  std::optional<int> port_;
  bool once_ = false;
};

}  // namespace

std::unique_ptr<Command> make_top_command() { return std::make_unique<TopCommand>(); }

}  // namespace cachalot::tools
