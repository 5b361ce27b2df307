// `cachalot check`: limits that a program's memory must keep, for CI.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/check.h"
#include "tools/analysis/checks.h"
#include "tools/base/output_file.h"
#include "tools/base/quoted.h"
#include "tools/base/report_tree.h"
#include "tools/commands/command.h"
#include "tools/commands/shared_options.h"
#include "tools/history/history.h"
#include "tools/output/html_report.h"

namespace cachalot::tools {
namespace {

constexpr int kBroken = 1;  // exit code

// "5%" or "0.05".
double part_of(const char* option, const std::string& text) {
  const bool is_percent = text.ends_with('%');
  const char* const end = text.data() + text.size() - (is_percent ? 1 : 0);
  double number = 0;
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  const double part = is_percent ? number / 100 : number;
  CACHALOT_REQUIRE(error == std::errc() && stopped == end && part >= 0 && part <= 1,
                   "{}: {} is not a part from 0 to 1, or from 0% to 100%", option, fmt::to_string(Quoted{text}));
  return part;
}

// "64MiB", or "1MiB/step": bytes for each of a stage.
LeakLimit leak_of(const char* option, const std::string& text) {
  const std::size_t slash = text.find('/');
  LeakLimit limit{.bytes = bytes_of_option(option, text.substr(0, slash)), .stage = ""};
  if (slash != std::string::npos) {
    limit.stage = text.substr(slash + 1);
    CACHALOT_REQUIRE(!limit.stage.empty(), "{}: {} names no stage behind the slash", option,
                     fmt::to_string(Quoted{text}));
  }
  return limit;
}

// "max_peak" as the option is written.
std::string option_of(const CheckedRule& rule) {
  std::string option = "--" + rule.rule;
  std::replace(option.begin(), option.end(), '_', '-');
  return option;
}

Table rules_table(const Check& check, const DeviceCheck& device) {
  Table table{.key = "rules",
              .title = "Limits",
              .columns = {{.title = "", .width = 6, .is_left = true, .views = kTextAlone},
                          {.title = "", .views = kTextAlone},
                          {.key = "rule", .title = "limit", .views = kNotInText},
                          {.key = "limit", .title = "allowed", .views = kNotInText},
                          {.key = "figure", .title = "found", .views = kNotInText},
                          {.key = "holds", .title = "verdict", .views = kNotInText}},
              .has_header = false,
              .indent = 0};
  const auto number = [](const CheckedNumber& value) { return std::visit([](auto one) { return Json(one); }, value); };
  for (const CheckedRule& rule : device.rules) {
    const std::string verdict = rule.holds ? "ok" : "BROKEN";
    table.rows.push_back({{nullptr, verdict, rule.holds ? Mood::good : Mood::bad},
                          {nullptr, fmt::format("{}: device {}: {} {}: {}", Printable{check.path}, device.device,
                                                option_of(rule), rule.limit, rule.figure)},
                          {rule.rule, option_of(rule)},
                          {number(rule.limit_number), rule.limit},
                          {number(rule.figure_number), rule.figure},
                          {rule.holds, verdict}});
  }
  return table;
}

Section report_of(const Check& check) {
  Section section;
  section.add_value("file", check.path).add_value("policy", check.policy.empty() ? Json(nullptr) : Json(check.policy));
  section.add_value("holds", check.holds());
  Section devices = list_of("devices");
  for (const DeviceCheck& device : check.devices) {
    const CheckedFigures& figures = device.figures;
    Section one;
    one.add_value("device", device.device).add_value("peak_bytes", figures.peak_bytes);
    one.add_value("reserved_bytes", figures.reserved_bytes).add_value("fragmentation", figures.fragmentation);
    one.add_value("allocations", figures.allocations).add_value("ooms", figures.ooms);
    one.add_value("earlier_bytes", figures.earlier_bytes).add(rules_table(check, device));
    if (figures.earlier_bytes > 0)
      one.add(
          Note{.text = fmt::format("note    {}: device {}: the history begins with {} allocated: what was before is "
                                   "not checked",
                                   Printable{check.path}, device.device, format_bytes(figures.earlier_bytes)),
               .is_wrapped = false});
    devices.add(std::move(one));
  }
  return section.add(std::move(devices));
}

// A command of GitHub's workflows: an annotation at the run. Its text has escapes of its own.
std::string annotation_of(const Check& check, const DeviceCheck& device, const CheckedRule& rule) {
  std::string text = fmt::format("{}: device {}: {}, where {} allows {}", Printable{check.path}, device.device,
                                 rule.figure, option_of(rule), rule.limit);
  std::string escaped;
  for (const char c : text) escaped += c == '%' ? "%25" : std::string(1, c);
  return fmt::format("::error title=cachalot check::{}\n", escaped);
}

class CheckCommand : public Command {
 public:
  const CommandText& text() const override {
    static const CommandText text = {
        .name = "check",
        .usage = "[OPTIONS] FILE...",
        .summary = "Say whether a program's memory keeps limits, by the exit code",
        .details =
            "Prints a line for each limit and device. Fragmentation is the part of the largest reserved memory that "
            "the largest requested memory does not need. The exit code is 0 if all limits are kept, 1 if one is "
            "broken, and 2 after an error.\n\n"
            "With --policy the limits are for a replay under another policy: native (PyTorch's default), expandable "
            "(its expandable segments), pages (cachalot's page heap), or any options of cachalot's allocator.",
        .examples = {{"In CI, after a test has written a snapshot:",
                      "cachalot check --max-peak 20GiB --max-fragmentation 5% --no-oom snapshot.pickle"},
                     {"Does the memory at the begin of each step stay the same?",
                      "cachalot check --max-leak '0/ProfilerStep*' snapshot.pickle"},
                     {"Would it fit an L4 with expandable segments?",
                      "cachalot check --policy expandable --gpu l4 --no-oom snapshot.pickle"}}};
    return text;
  }

  void declare(CLI::App& app) override {
    app.add_option("FILE", files_, "Memory snapshots, traces, or logs of allocations")->required();
    app.option_defaults()->group("Limits");
    app.add_option("--max-peak", peak_, "The most requested memory that may live at once")->type_name("SIZE");
    app.add_option("--max-reserved", reserved_, "The most memory that may be reserved")->type_name("SIZE");
    app.add_option("--max-fragmentation", fragmentation_,
                   "The part of the reserved memory that may be wasted at the peaks: 5% or 0.05")
        ->type_name("PART");
    app.add_option("--max-leak", leak_,
                   "How much the lowest level of memory may rise from the second to the last third of the history; "
                   "SIZE/STAGE: from one begin of an annotation to the next, where STAGE may have a *")
        ->type_name("SIZE");
    app.add_option("--max-allocations", limits_.most_allocations, "How many allocations the history may have")
        ->type_name("N")
        ->check(CLI::NonNegativeNumber);
    app.add_flag("--no-oom", limits_.no_oom, "No allocation may have failed");
    app.option_defaults()->group(kOptions);
    app.add_option("--policy", policy_.name, "Replay under this policy: native, expandable, pages or OPTIONS")
        ->type_name("POLICY");
    declare_device_size(app, device_);
    app.option_defaults()->group(kOutputOptions);
    app.add_flag("--github", github_, "Print a line for each broken limit that GitHub Actions shows as an error");
    app.add_flag("--json", json_, "Print one JSON object for each file, each on one line");
    declare_html(app, html_);
  }

  // All are read and checked before anything is printed: a bad one is an error without output.
  int run(const Styles& styles) override {
    read_limits();
    require_no_input(html_, "--html", files_);
    std::vector<Check> checks;
    std::vector<Timelines> timelines;  // that the page shows
    for (const std::string& path : files_) {
      Timelines one(history_in(path));
      checks.push_back(check_history(one, limits_, policy_));
      if (!html_.empty()) timelines.push_back(std::move(one));
    }
    if (!html_.empty()) write_html(checks, timelines);
    bool all_hold = true;
    for (const Check& check : checks) {
      all_hold = all_hold && check.holds();
      print(output_of(check, styles.out));
    }
    return all_hold ? 0 : kBroken;
  }

 private:
  void read_limits() {
    if (peak_) limits_.most_peak_bytes = bytes_of_option("--max-peak", *peak_);
    if (reserved_) limits_.most_reserved_bytes = bytes_of_option("--max-reserved", *reserved_);
    if (fragmentation_) limits_.most_fragmentation = part_of("--max-fragmentation", *fragmentation_);
    if (leak_) limits_.most_leak = leak_of("--max-leak", *leak_);
    CACHALOT_REQUIRE(!limits_.is_empty(), "no limit was given (see cachalot check --help)");
    CACHALOT_REQUIRE(!policy_.name.empty() || (!device_.gpu && !device_.memory),
                     "--gpu and --device-memory are for a replay: give --policy as well");
    policy_.device_bytes = device_bytes(device_, policy_.device_bytes);
  }

  std::string output_of(const Check& check, const Style& style) const {
    if (json_) return tools::text_of(json_of(report_of(check))) + "\n";
    if (!github_) return text_of(report_of(check), style);
    std::string text;
    for (const DeviceCheck& device : check.devices) {
      for (const CheckedRule& rule : device.rules) {
        if (!rule.holds) text += annotation_of(check, device, rule);
      }
    }
    return text;
  }

  // With the whole history of each file.
  void write_html(const std::vector<Check>& checks, const std::vector<Timelines>& timelines) const {
    const auto broken = std::ranges::count(checks, false, &Check::holds);
    HtmlReport report{.title = files_.size() == 1 ? files_[0] : fmt::format("{} files", files_.size()),
                      .command = "cachalot check"};
    report.verdict.headline = broken == 0   ? "All limits are kept."
                              : broken == 1 ? "1 file breaks a limit."
                                            : fmt::format("{} files break a limit.", broken);
    report.verdict.is_bad = broken != 0;
    for (const Check& check : checks) {
      Section section = report_of(check);
      if (checks.size() > 1) section.title = check.path;
      report.answer.add(std::move(section));
    }
    for (const Timelines& one : timelines) add_runs(report, one);
    write_html_report(html_, report, built_in_rules());
  }

  std::vector<std::string> files_;
  std::optional<std::string> peak_;
  std::optional<std::string> reserved_;
  std::optional<std::string> fragmentation_;
  std::optional<std::string> leak_;
  CheckLimits limits_;
  CheckPolicy policy_;
  DeviceSize device_;
  bool github_ = false;
  bool json_ = false;
  std::string html_;  // a file; empty: no page
};

}  // namespace

std::unique_ptr<Command> make_check_command() { return std::make_unique<CheckCommand>(); }

}  // namespace cachalot::tools
