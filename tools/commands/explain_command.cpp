// `cachalot explain`: says why memory ran out, or what held it at its peak, and what would help.
#include <fmt/format.h>

#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "tools/analysis/explanation_report.h"
#include "tools/analysis/remedies.h"
#include "tools/base/output_file.h"
#include "tools/base/quoted.h"
#include "tools/base/text_layout.h"
#include "tools/commands/command.h"
#include "tools/commands/shared_options.h"
#include "tools/output/html_report.h"

namespace cachalot::tools {
namespace {

std::string moment_text_of(const Explanation& one, bool is_one_of_many) {
  std::string text = fmt::format("{}{}vent {} of {}: {} in use of {} reserved", is_one_of_many ? name_of(one) : "",
                                 is_one_of_many ? ", e" : "E", with_commas(one.peak.event), with_commas(one.events),
                                 format_bytes(one.peak.held.allocated), format_bytes(one.peak.held.reserved));
  if (!one.at.empty()) text += fmt::format(", at {}", one.at);
  return text + ".";
}

HtmlRemedy html_remedy(const Remedy& remedy, std::uint64_t of_bytes) {
  std::string evidence =
      remedy.serves ? "Replayed with it, the request is served." : "Replayed with it, the program reserves as much.";
  if (remedy.reserved_bytes != of_bytes) {
    evidence =
        fmt::format("Replayed with it, the program reserves {} instead of {}{}.", format_bytes(remedy.reserved_bytes),
                    format_bytes(of_bytes), remedy.serves ? ", and the request is served" : "");
  }
  return {.title = remedy.text, .evidence = std::move(evidence), .setting = remedy.setting};
}

HtmlVerdict verdict_of(std::span<const Explanation> explanations) {
  HtmlVerdict verdict;
  for (const Explanation& one : explanations) {
    if (verdict.headline.empty()) {
      verdict.headline = one.text;
    } else if (!one.text.empty()) {
      verdict.paragraphs.push_back(fmt::format("{}: {}", name_of(one), one.text));
    }
    verdict.paragraphs.push_back(moment_text_of(one, explanations.size() > 1));
    if (one.remedies.best.empty() && !one.recommendation.empty())
      verdict.paragraphs.push_back("Recommendation: " + one.recommendation);
    for (const Remedy& remedy : one.remedies.best)
      verdict.remedies.push_back(html_remedy(remedy, one.remedies.of_bytes));
  }
  return verdict;
}

constexpr std::size_t kLongestMessage = std::size_t{4} << 20;  // bytes: a log may be around it

std::string text_of_file(const std::string& path) {
  return with_file(path, "message", [&](InputFile file) {
    std::string text(kLongestMessage + 1, '\0');
    text.resize(file.read(text.data(), text.size()));
    CACHALOT_REQUIRE(file.trouble().empty(), "{}: {}", path, file.trouble());
    CACHALOT_REQUIRE(text.size() <= kLongestMessage, "{}: a message has more than {} bytes; give the end of the log",
                     path, kLongestMessage);
    return text;
  });
}

class ExplainCommand : public Command {
 public:
  const CommandText& text() const override {
    static const CommandText text = {
        .name = "explain",
        .usage = "[OPTIONS] [FILE]",
        .summary = "Say why GPU memory ran out, or what held it at its peak, and what would help",
        .details =
            "Reads a memory snapshot and reports when memory ran out or peaked, what was live then, what was cached "
            "and why the request could not be served, with at most three remedies. Each remedy is proven by a replay "
            "of the recorded program. PyTorch's error message adds what the snapshot does not tell, and is enough by "
            "itself for the cause, as far as its figures tell; those of other libraries are read, too.\n\n"
            "A pickle is read as plain data: nothing in it is executed. The exit code is 0, or 2 after an error, "
            "which one line on standard error tells.",
        .examples = {
            {"In the program: torch.cuda.memory._dump_snapshot(\"oom.pickle\"); then:", "cachalot explain oom.pickle"},
            {"With the program's traceback, which names other processes:",
             "cachalot explain oom.pickle --message train.log"},
            {"Without a snapshot:", "cachalot explain --message train.log"}}};
    return text;
  }

  void declare(CLI::App& app) override {
    app.add_option(
        "FILE", path_,
        "A file of torch.cuda.memory._dump_snapshot, cachalot's own JSON or another log of allocations; plain or gzip");
    app.add_option("--message", message_,
                   "A file with the error message, such as a log of all ranks; - for standard input")
        ->type_name("FILE");
    app.add_option("--rules", rules_, "Rules of your own for categories, as JSON")->type_name("FILE");
    app.add_option("--gpu", size_.gpu,
                   "The GPU that the program ran on, such as t4 or a100-80: tells how much memory it had");
    app.add_option("--memory", size_.memory, "The memory of the GPU that the program ran on, such as 24GiB")
        ->type_name("SIZE");
    app.option_defaults()->group(kOutputOptions);
    app.add_option("--frames", frames_,
                   "Show lines of the program (own), of libraries other than PyTorch as well (library), or all")
        ->type_name("WHICH")
        ->check(CLI::IsMember({"own", "library", "all"}))
        ->capture_default_str();
    app.add_option("--device", device_, "Report this device alone")->type_name("N")->check(CLI::NonNegativeNumber);
    app.add_flag("--tree", tree_, "Show the calls that allocated the live memory, as a tree");
    app.add_option("--top", top_, "How many rows of each table to show")
        ->type_name("N")
        ->check(CLI::Range(0, 1000000))
        ->capture_default_str();
    app.add_flag("--json", json_, "Print one JSON object on one line");
    app.add_option("--text", text_, "Write the report as text, with every row of each table")->type_name("FILE");
    app.add_option("--html", html_, "Write a page with all of it, from the whole history, for a browser")
        ->type_name("FILE");
  }

  int run(const Styles& styles) override {
    CACHALOT_REQUIRE(!path_.empty() || !message_.empty(), "explain needs FILE or --message");
    require_no_input(html_, "--html", std::vector{path_, message_, rules_});
    require_no_input(text_, "--text", std::vector{path_, message_, rules_});
    const CategoryRules rules =
        rules_.empty() ? built_in_rules()
                       : with_file(rules_, "rules", [](InputFile file) { return rules_with(std::move(file)); });
    const ExplainOptions options = explain_options();
    History history;
    if (!path_.empty()) history = history_in(path_, "snapshot");
    if (device_) keep_device(history);
    const std::vector<OomMessage> messages = read_messages();
    for (auto message = messages.rbegin(); message != messages.rend(); ++message) {
      if (message->is_of_torch) add_facts(*message, history);  // of the last one first: what is known stays
    }
    const Timelines timelines(std::move(history));
    const std::vector<Explanation> explanations = explained(timelines, rules, options, messages);
    const Section answer = this->answer(explanations, timelines.history().settings, top_);
    if (!text_.empty()) {
      const Section whole = this->answer(explanations, "", std::numeric_limits<std::size_t>::max());
      write_output(text_, "--text", text_of(whole, Style()));
    }
    if (!html_.empty()) write_html(explanations, answer, timelines, rules);
    print(json_ ? tools::text_of(json_of(answer)) + "\n" : text_of(answer, styles.out));
    return 0;
  }

 private:
  ExplainOptions explain_options() const {
    ExplainOptions options;
    options.frames = frames_ == "own" ? Frames::own : frames_ == "library" ? Frames::library : Frames::all;
    options.has_tree = tree_;
    if (size_.gpu || size_.memory) options.total_bytes = device_bytes(size_, 0, "--memory");
    return options;
  }

  std::vector<OomMessage> read_messages() const {
    if (message_.empty()) return {};
    const bool is_piped = message_ == "-";
    return read_oom_messages(text_of_file(is_piped ? "/dev/stdin" : message_), is_piped ? "standard input" : message_);
  }

  void keep_device(History& history) const {
    std::erase_if(history.devices, [&](const DeviceHistory& device) { return device.device != *device_; });
    CACHALOT_REQUIRE(!history.devices.empty(), "{}: the history has no device {}", path_, *device_);
    history.host.clear();
  }

  // Memory ran out on one device; a message without its number is of the only one.
  static std::optional<OomMessage> message_of(const DeviceHistory& device, const History& history,
                                              const std::vector<OomMessage>& messages) {
    for (auto message = messages.rbegin(); message != messages.rend(); ++message) {
      if (message->device == device.device) return *message;
    }
    if (messages.empty() || history.devices.size() > 1) return std::nullopt;
    return messages.back();
  }

  static std::vector<Explanation> explained(const Timelines& timelines, const CategoryRules& rules,
                                            const ExplainOptions& options, const std::vector<OomMessage>& messages) {
    std::vector<Explanation> explanations;
    for (const Timeline& timeline : timelines.devices()) {
      ExplainOptions of_device = options;
      of_device.message = message_of(timeline.device(), timelines.history(), messages);
      explanations.push_back(explain(timeline, rules, of_device));
    }
    ExplainOptions of_host = options;
    of_host.is_host = true;
    for (const Timeline& timeline : timelines.host()) explanations.push_back(explain(timeline, rules, of_host));
    if (!explanations.empty()) return explanations;
    for (const OomMessage& message : messages) explanations.push_back(explain_message(message, options.total_bytes));
    return explanations;
  }

  const std::string& name() const { return path_.empty() ? message_ : path_; }

  // The answer about all devices.
  Section answer(const std::vector<Explanation>& explanations, const std::string& settings, std::size_t top) const {
    Section root(printable(name()));
    root.add_value("file", name()).add_value("settings", settings);
    if (explanations.empty())
      root.add(Note{.text = "  no memory is held, and there is no history", .is_wrapped = false});
    for (const bool is_host : {false, true}) {
      Section list = list_of(is_host ? "host" : "devices");
      for (const Explanation& one : explanations) {
        if (one.is_host != is_host) continue;
        Section device = report_of(one, top);
        if (explanations.size() > 1 || one.device != 0 || one.is_host) device.title = name_of(one);
        list.add(std::move(device));
      }
      root.add(std::move(list));
    }
    return root;
  }

  void write_html(const std::vector<Explanation>& explanations, const Section& answer, const Timelines& timelines,
                  const CategoryRules& rules) const {
    HtmlReport report{.title = name(), .command = "cachalot explain", .verdict = verdict_of(explanations)};
    report.answer = answer;
    add_runs(report, timelines);
    write_html_report(html_, report, rules);
  }

  std::string path_;
  std::string message_;
  std::string frames_ = "own";
  std::optional<int> device_;
  bool tree_ = false;
  std::string rules_;
  std::size_t top_ = 10;
  DeviceSize size_;
  bool json_ = false;
  std::string html_;  // this and the next: a file; empty: none
  std::string text_;
};

}  // namespace

std::unique_ptr<Command> make_explain_command() { return std::make_unique<ExplainCommand>(); }

}  // namespace cachalot::tools
