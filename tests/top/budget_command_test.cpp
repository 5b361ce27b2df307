// `cachalot budget` as its users run it, beside this process, which is a member.
#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>

#include "cachalot/gpu_budget.h"
#include "tests/top/testing.h"

namespace cachalot::tools::live {
namespace {

// This process as two members of the budget that it would join without a path, in a folder of its own.
struct Budget {
  Budget() {
    setenv("CACHALOT_PUBLISH_DIR", folder.path().c_str(), 1);
    for (const char* name : {"trainer", "server"}) {
      BudgetOptions options;
      options.name = name;
      options.floor_bytes = 8 * kGiB;
      members.push_back(std::make_unique<GpuBudget>(world.allocator, 0, options));
    }
    path = members.front()->path();
  }
  ~Budget() { unsetenv("CACHALOT_PUBLISH_DIR"); }
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  static Outcome run(const std::string& arguments) {
    return run_command(std::string("'") + CACHALOT_COMMAND + "' budget " + arguments);
  }

  PageFolder folder;
  World world;
  std::vector<std::unique_ptr<GpuBudget>> members;
  std::string path;
};

TEST(BudgetCommand, ShowsMembersAndSetChangesThem) {
  const Budget budget;
  const Outcome shown = Budget::run("show");
  EXPECT_EQ(shown.err, "");
  EXPECT_EQ(shown.out.substr(0, shown.out.find(" of ")), budget.path + ": 64.00 GiB");
  EXPECT_CONTAINS(shown.out,
                  ", 2 members\n process    share       floor        part        held        live  given back  name\n");
  EXPECT_CONTAINS(shown.out, "        1    8.00 GiB   32.00 GiB     0 bytes     0 bytes     0 bytes  trainer\n");
  const Outcome changed = Budget::run("set trainer --share 2 --floor 16GiB");
  EXPECT_EQ(changed.exit_code, 0) << changed.err;
  EXPECT_CONTAINS(changed.out, "        2   16.00 GiB   42.67 GiB     0 bytes     0 bytes     0 bytes  trainer\n");
  EXPECT_EQ(Budget::run("set --total 48GiB --path '" + budget.path + "'").exit_code, 0);
  const auto json = nlohmann::json::parse(Budget::run("show --json").out);
  EXPECT_EQ(json.at("total_bytes"), 48 * kGiB);
  EXPECT_EQ(json.at("path"), budget.path);
  EXPECT_EQ(json.at("members").at(1).at("floor_bytes"), 8 * kGiB);
  EXPECT_EQ(json.at("members").at(0).at("process_id"), getpid());
  EXPECT_EQ(json.at("members").at(0).at("part_bytes"), 32 * kGiB);
}

TEST(BudgetCommand, TellsEachMistakeInOneLine) {
  const Budget budget;
  const auto mistake = [](const std::string& arguments) {
    const Outcome outcome = Budget::run(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments;
    EXPECT_EQ(outcome.out, "") << arguments;
    return outcome.err;
  };
  EXPECT_EQ(mistake("set trainee --share 2"),
            "cachalot: 'trainee' is no member of the budget; did you mean 'trainer'?\n");
  EXPECT_CONTAINS(mistake("set " + std::to_string(getpid()) + " --share 2"), "is 2 members, of the processes ");
  EXPECT_CONTAINS(mistake("set trainer --share 0"), "a share of 0: it must be a number from 0.001 to 1000000");
  EXPECT_CONTAINS(mistake("set trainer --share inf"), "a share of inf");
  EXPECT_CONTAINS(mistake("set trainer --floor 60GiB"), "it may be at most 56.00 GiB");
  EXPECT_CONTAINS(mistake("set trainer --floor much"), "'much' is not a size");
  EXPECT_CONTAINS(mistake("set --total 15GiB"), "it must be at least 16.00 GiB, the sum of the floors");
  EXPECT_CONTAINS(mistake("set trainer"), "nothing is to be set of 'trainer': give --share or --floor");
  EXPECT_CONTAINS(mistake("set"), "set takes a MEMBER, or --total SIZE");
  EXPECT_CONTAINS(mistake("set trainer --total 9GiB"), "--total is of all members: give it without 'trainer'");
  EXPECT_CONTAINS(mistake("set --floor 1GiB --total 9GiB"), "--floor is of one member");
  EXPECT_CONTAINS(mistake("show trainer"), "show changes nothing");
  EXPECT_CONTAINS(mistake("shwo"), "'shwo' is not one of show, set; did you mean 'show'?");
  EXPECT_CONTAINS(mistake("show --path /nonexistent/budget"), "No such file or directory");
  set_budget_total(budget.path + "2", kGiB);
  EXPECT_CONTAINS(mistake("set trainer --share 2"), "there are 2 budgets: name one by --path: " + budget.path + ", ");
}

}  // namespace
}  // namespace cachalot::tools::live
