// `cachalot diff`: what grew between two runs.
#include <fmt/format.h>

#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "tools/analysis/difference.h"
#include "tools/base/output_file.h"
#include "tools/commands/command.h"
#include "tools/commands/shared_options.h"
#include "tools/history/history.h"
#include "tools/output/html_report.h"

namespace cachalot::tools {
namespace {

std::string growth_text(std::int64_t bytes) {
  const std::uint64_t size = bytes < 0 ? 0 - static_cast<std::uint64_t>(bytes) : static_cast<std::uint64_t>(bytes);
  return fmt::format("{} {}", format_bytes(size), bytes < 0 ? "less" : "more");
}

// Puts the verdict on two runs into a page.
void add_difference(HtmlReport& report, const Difference& difference) {
  for (const DeviceDifference& device : difference.devices) {
    const std::string text =
        fmt::format("{} holds {} than {}", difference.paths[1], growth_text(device.growth()), difference.paths[0]);
    if (report.verdict.headline.empty()) {
      report.verdict.headline = text;
    } else {
      report.verdict.paragraphs.push_back(text);
    }
  }
}

class DiffCommand : public Command {
 public:
  const CommandText& text() const override {
    static const CommandText text = {
        .name = "diff",
        .usage = "[OPTIONS] FILE FILE...",
        .summary = "Say what grew between two runs, ranks or commits",
        .details =
            "Compares the live memory at the peak of each file with that at the peak of the first: by category, line, "
            "module, pool and stage, and in time. The growths of each list add up to the growth of the peak. Lines "
            "belong together although files lie elsewhere (the longest common end of the paths tells) and lines have "
            "moved inside their function.",
        .examples = {{"What has the last commit cost?", "cachalot diff before.pickle after.pickle"},
                     {"Why does rank 3 need more than rank 0?", "cachalot diff rank0.pickle rank3.pickle"},
                     {"At the moment when memory ran out, for a script:",
                      "cachalot diff --at oom --json good.pickle bad.pickle"}}};
    return text;
  }

  void declare(CLI::App& app) override {
    app.add_option("FILE", files_, "Memory snapshots, traces, or logs of allocations: two or more")->required();
    app.add_option("--at", options_.at,
                   "The moment of each file: the peak of allocated memory, the peak of reserved memory (reserved), the "
                   "last failed allocation (oom), the end, or after a number of events")
        ->type_name("MOMENT")
        ->capture_default_str();
    app.add_option("--frames", frames_, "Whose lines are shown: own, library or all")
        ->type_name("FRAMES")
        ->capture_default_str();
    app.add_option("--rules", rules_, "Rules of categories, in front of the built-in ones")->type_name("FILE");
    app.option_defaults()->group(kOutputOptions);
    app.add_option("--top", top_, "How many rows of each list to show")
        ->type_name("N")
        ->check(CLI::Range(0, 1000000))
        ->capture_default_str();
    app.add_flag("--json", json_, "Print one JSON object for each comparison, each on one line");
    app.add_option("--html", html_, "Write a page with all of it, from the whole histories, for a browser")
        ->type_name("FILE");
  }

  // All are read and compared before anything is printed: a bad one is an error without output.
  int run(const Styles& styles) override {
    CACHALOT_REQUIRE(files_.size() >= 2, "diff compares two files or more, and got {} (see cachalot diff --help)",
                     files_.size());
    require_no_input(html_, "--html", files_);
    require_no_input(html_, "--html", std::vector{rules_.value_or("")});
    options_.frames = frames_asked_for();
    const CategoryRules rules = rules_ ? rules_with(InputFile(*rules_, "file of rules")) : built_in_rules();
    const Timelines first(history_in(files_.front()));
    HtmlReport html;
    if (!html_.empty()) add_runs(html, first);
    std::list<Timelines> others;  // that the report shows
    std::string text;
    for (std::size_t i = 1; i < files_.size(); ++i) {
      others.emplace_back(history_in(files_[i]));
      const Difference difference = difference_of(first, others.back(), rules, options_);
      Section report = report_of(difference, top_);
      if (json_) text += tools::text_of(json_of(report)) + "\n";
      if (!json_) text += (text.empty() ? "" : "\n") + text_of(report, styles.out);
      if (html_.empty()) {
        others.clear();
      } else {
        add_difference(html, difference);
        html.answer.add(std::move(report));
        add_runs(html, others.back());
      }
    }
    if (!html_.empty()) write_html(std::move(html), rules);
    print(text);
    return 0;
  }

 private:
  void write_html(HtmlReport html, const CategoryRules& rules) const {
    html.title = fmt::format("{} and {}", files_[0], files_.size() == 2 ? files_[1] : "others");
    html.command = "cachalot diff";
    html.compares = html.runs.size() == 2;
    write_html_report(html_, html, rules);
  }

  Frames frames_asked_for() const {
    if (frames_ == "library") return Frames::library;
    CACHALOT_REQUIRE(frames_ == "own" || frames_ == "all", "--frames: '{}' is not one of own, library and all",
                     frames_);
    return frames_ == "own" ? Frames::own : Frames::all;
  }

  std::vector<std::string> files_;
  DifferenceOptions options_;
  std::string frames_ = "own";
  std::optional<std::string> rules_;
  std::size_t top_ = 10;
  bool json_ = false;
  std::string html_;  // a file; empty: no report
};

}  // namespace

std::unique_ptr<Command> make_diff_command() { return std::make_unique<DiffCommand>(); }

}  // namespace cachalot::tools
