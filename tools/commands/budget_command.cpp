// `cachalot budget`: shows and changes how processes divide the memory of a GPU.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "cachalot/gpu_budget.h"
#include "diagnostics/process_publisher.h"
#include "tools/base/quoted.h"
#include "tools/base/report_tree.h"
#include "tools/base/text_layout.h"
#include "tools/commands/command.h"
#include "tools/commands/help_text.h"

namespace cachalot::tools {
namespace {

// Members write their figures each second.
std::string note_on(const BudgetMember& member) {
  const auto now = std::chrono::nanoseconds{std::chrono::system_clock::now().time_since_epoch()}.count();
  const std::int64_t age_s = (now - member.written_ns) / 1'000'000'000;
  return age_s < 5 ? "" : fmt::format("  (stopped: its figures are {} s old)", age_s);
}

Section report_of(const BudgetFigures& figures) {
  std::string gpu = figures.gpu.empty() ? "" : " of " + printable(figures.gpu);
  if (!figures.uuid.empty()) gpu += " " + figures.uuid;
  Table table{.columns = {{.title = "process", .width = 8}, {.title = "share", .unit = Unit::number, .width = 8}},
              .indent = 0};
  for (const char* title : {"floor", "part", "held", "live", "given back"}) {
    table.columns.push_back({.title = title, .unit = Unit::bytes, .width = 11});
  }
  table.columns.push_back({.title = "name"});
  for (const BudgetMember& member : figures.members) {
    table.rows.push_back({member.process_id, member.share, member.floor_bytes, member.part_bytes, member.held_bytes,
                          member.live_bytes, member.given_back_bytes, printable(member.name) + note_on(member)});
  }
  Section report;
  report.add(Note{.text = fmt::format("{}: {}{}, {}", Printable{figures.path}, format_bytes(figures.total_bytes), gpu,
                                      format_count(figures.members.size(), "member")),
                  .is_wrapped = false});
  return report.add(std::move(table));
}

class BudgetCommand : public Command {
 public:
  const CommandText& text() const override {
    static const CommandText text = {
        .name = "budget",
        .usage = "[OPTIONS] ACTION [MEMBER]",
        .summary = "Show and change how processes divide the memory of a GPU",
        .details =
            "Programs join the budget of their GPU by cachalot.join_budget() in Python, cachalot_join_budget() in C or "
            "a GpuBudget in C++. A member's part is its floor, and of the total less all floors what its share is of "
            "all shares. A member that holds more than its part gives cached memory back within a second, then "
            "evictable tags; other memory in use is never touched.\n\n"
            "show prints the members of each budget, set changes a member's share and floor, or the total. MEMBER is "
            "the name of a member or the number of its process.\n\n"
            "Without --path these are the budgets of this user in /dev/shm, or in the folder that CACHALOT_PUBLISH_DIR "
            "names. Shares and floors hold until the member ends, the total until the file is removed.",
        .examples = {{"Who has how much of the GPU?", "cachalot budget show"},
                     {"Twice the share of the others, and at least 10 GiB:",
                      "cachalot budget set train.py --share 2 --floor 10GiB"},
                     {"Leave 8 GiB of 80 GiB to programs without cachalot:", "cachalot budget set --total 72GiB"}}};
    return text;
  }

  void declare(CLI::App& app) override {
    app.add_option("ACTION", action_, "show or set")->required()->check(one_of_its_choices("ACTION"));
    app.add_option("MEMBER", member_, "The member that set changes: its name, or the number of its process");
    app.add_option("--share", share_, "The member's share, from 0.001 to 1000000")->type_name("SHARE");
    app.add_option("--floor", floor_, "The least that the member's part has, such as 10GiB")->type_name("SIZE");
    app.add_option("--total", total_, "The memory that is divided; by default the GPU's")->type_name("SIZE");
    app.add_option("--path", path_, "The file of the budget")->type_name("FILE");
    app.option_defaults()->group(kOutputOptions);
    app.add_flag("--json", json_, "Print a JSON object for each budget, each on one line");
  }

  int run(const Styles& styles) override {
    const std::optional<std::size_t> floor = bytes_of(floor_);
    const std::optional<std::size_t> total = bytes_of(total_);
    std::vector<std::string> paths = path_.empty() ? default_budget_paths() : std::vector{path_};
    const std::string folder = publish_directory("");
    CACHALOT_REQUIRE(!paths.empty(), "there is no budget of this user in {}: a program that joins makes it", folder);
    if (action_ == "show") {
      CACHALOT_REQUIRE(member_.empty() && !share_ && floor_.empty() && total_.empty(),
                       "show changes nothing: set takes MEMBER, --share, --floor and --total");
    } else {
      CACHALOT_REQUIRE(paths.size() == 1, "there are {} budgets: name one by --path: {}", paths.size(),
                       fmt::to_string(fmt::join(paths, ", ")));
      change(paths.front(), floor, total);
    }
    for (const std::string& path : paths) {
      const BudgetFigures figures = read_budget(path);
      print(json_ ? to_json(figures) + "\n" : text_of(report_of(figures), styles.out));
    }
    return 0;
  }

 private:
  static std::optional<std::size_t> bytes_of(const std::string& text) {
    return text.empty() ? std::nullopt : std::optional(parse_bytes(text));
  }

  void change(const std::string& path, std::optional<std::size_t> floor, std::optional<std::size_t> total) const {
    CACHALOT_REQUIRE(member_.empty() || !total, "--total is of all members: give it without '{:.60}'", member_);
    if (total) {
      CACHALOT_REQUIRE(!share_ && !floor, "--{} is of one member: give it without --total", share_ ? "share" : "floor");
      return set_budget_total(path, *total);
    }
    CACHALOT_REQUIRE(!member_.empty(), "set takes a MEMBER, or --total SIZE");
    CACHALOT_REQUIRE(share_ || floor, "nothing is to be set of '{:.60}': give --share or --floor", member_);
    set_budget(path, member_, share_, floor);
  }

  std::string action_;
  std::string member_;
  std::optional<double> share_;
  std::string floor_;
  std::string total_;
  std::string path_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_budget_command() { return std::make_unique<BudgetCommand>(); }

}  // namespace cachalot::tools
