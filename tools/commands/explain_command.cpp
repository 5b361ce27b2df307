// `cachalot explain`: says why memory ran out, or what held it at its peak, and what would help.
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "tools/analysis/explain_report.h"
#include "tools/analysis/explanation.h"
#include "tools/commands/command.h"
#include "tools/commands/shared_options.h"
#include "tools/output_file.h"
#include "tools/pages/explanation_page.h"
#include "tools/pages/page_writer.h"

namespace cachalot::tools {
namespace {

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
            "and why the "
            "request could not be served, with at most three remedies. Each remedy is proven by a replay of the "
            "recorded "
            "program. PyTorch's error message adds what the snapshot does not tell, and is enough by itself for the "
            "cause.\n\n"
            "A pickle is read as plain data: nothing in it is executed. The exit code is 0, or 2 after an error, which "
            "one line "
            "on standard error tells.",
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
    app.add_option("--message", message_, "A file with PyTorch's error message, such as a log; - for standard input")
        ->type_name("FILE");
    app.add_option("--frames", frames_,
                   "Show lines of the program (own), of libraries other than PyTorch as well (library), or all")
        ->type_name("WHICH")
        ->check(CLI::IsMember({"own", "library", "all"}))
        ->capture_default_str();
    app.add_flag("--tree", tree_, "Show the calls that allocated the live memory, as a tree");
    app.add_option("--rules", rules_, "Rules of your own for categories, as JSON")->type_name("FILE");
    app.add_option("--top", top_, "How many rows of each table to show")
        ->type_name("N")
        ->check(CLI::Range(0, 1000000))
        ->capture_default_str();
    app.add_option("--gpu", size_.gpu,
                   "The GPU that the program ran on, such as t4 or a100-80: tells how much memory it had");
    app.add_option("--memory", size_.memory, "The memory of the GPU that the program ran on, such as 24GiB")
        ->type_name("SIZE");
    app.add_flag("--json", json_, "Print one JSON object on one line");
    app.add_option("--html", html_, "Write a page with all of it, from the whole history, for a browser")
        ->type_name("FILE");
  }

  int run(const Styles& styles) override {
    CACHALOT_REQUIRE(!path_.empty() || !message_.empty(), "explain needs FILE or --message");
    require_no_input(html_, "--html", std::vector{path_, message_, rules_});
    const CategoryRules rules =
        rules_.empty() ? built_in_rules()
                       : with_file(rules_, "rules", [](InputFile file) { return rules_with(std::move(file)); });
    const ExplainOptions options = explain_options();
    History history;
    if (!path_.empty()) {
      history = with_file(path_, "snapshot", [](InputFile file) { return read_history(std::move(file)); });
    }
    if (options.message) add_facts(*options.message, history);
    const std::vector<Explanation> explanations = explained(history, rules, options);
    if (!html_.empty()) write_html(explanations, history, rules);
    print_all(explanations, history, styles);
    return 0;
  }

 private:
  ExplainOptions explain_options() const {
    ExplainOptions options;
    options.frames = frames_ == "own" ? Frames::own : frames_ == "library" ? Frames::library : Frames::all;
    options.has_tree = tree_;
    if (size_.gpu || size_.memory) options.total_bytes = device_bytes(size_, 0, "--memory");
    if (!message_.empty()) {
      const bool is_piped = message_ == "-";
      options.message =
          read_oom_message(text_of_file(is_piped ? "/dev/stdin" : message_), is_piped ? "standard input" : message_);
    }
    return options;
  }

  std::vector<Explanation> explained(History& history, const CategoryRules& rules,
                                     const ExplainOptions& options) const {
    std::vector<Explanation> explanations;
    for (DeviceHistory& device : history.devices) {
      // Memory ran out on one device.
      ExplainOptions of_device = options;
      if (options.message && options.message->device != device.device && history.devices.size() > 1)
        of_device.message.reset();
      explanations.push_back(explain(history, device, rules, of_device));
    }
    ExplainOptions of_host = options;
    of_host.is_host = true;
    of_host.message.reset();
    for (DeviceHistory& host : history.host) explanations.push_back(explain(history, host, rules, of_host));
    if (explanations.empty() && options.message) explanations.push_back(explain_message(history, options));
    return explanations;
  }

  void write_html(const std::vector<Explanation>& explanations, const History& history,
                  const CategoryRules& rules) const {
    PageReport report;
    report.title = path_.empty() ? message_ : path_;
    report.command = "cachalot explain";
    add_explanations(report, explanations);
    add_runs(report, history);
    write_page(html_, report, rules);
  }

  void print_all(const std::vector<Explanation>& explanations, const History& history, const Styles& styles) const {
    const std::string& name = path_.empty() ? message_ : path_;
    if (json_) return print(to_json(name, history.settings, explanations, top_) + "\n");
    std::string text = styles.out.bold(name) + "\n";
    if (explanations.empty()) text += "  no memory is held, and there is no history\n";
    for (const Explanation& one : explanations) {
      if (explanations.size() > 1 || one.device != 0 || one.is_host) text += name_of(one) + "\n";
      text += to_text(one, top_, styles.out);
    }
    print(text);
  }

  std::string path_;
  std::string message_;
  std::string frames_ = "own";
  bool tree_ = false;
  std::string rules_;
  std::size_t top_ = 10;
  DeviceSize size_;
  bool json_ = false;
  std::string html_;  // a file; empty: no page
};

}  // namespace

std::unique_ptr<Command> make_explain_command() { return std::make_unique<ExplainCommand>(); }

}  // namespace cachalot::tools
