// Help, suggestions, colours, completion and the manual page of the `cachalot` command.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/tools/run_command.h"
#include "tests/tools/temporary_file.h"

namespace cachalot::tools {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const std::vector<std::string> kCommands = {"snapshot", "simulate", "fit",  "compare", "replay", "diff",       "check",
                                            "convert",  "run",      "gpus", "budget",  "help",   "completion", "man"};

Outcome cachalot(const std::string& arguments, const std::string& variables = "") {
  return run_command(fmt::format("{} '{}' {}", variables, CACHALOT_COMMAND, arguments));
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++count;
  return count;
}

TEST(Help, IsWhatTheCommandSaysWithoutWords) {
  const Outcome bare = cachalot("");
  EXPECT_EQ(bare.exit_code, 0);
  EXPECT_EQ(bare.err, "");
  for (const char* words : {"--help", "-h", "help"}) EXPECT_EQ(cachalot(words).out, bare.out) << words;
  for (const std::string& command : kCommands) EXPECT_THAT(bare.out, HasSubstr("\n  " + command + "  ")) << command;
}

TEST(Help, OfACommandHasOneUsageLineEveryOptionAndLinesThatFit) {
  for (const std::string& command : kCommands) {
    const Outcome help = cachalot(command + " --help");
    EXPECT_EQ(help.exit_code, 0) << help.err;
    EXPECT_EQ(help.out, cachalot("help " + command).out);
    EXPECT_THAT(help.out, StartsWith("Usage: cachalot " + command));
    EXPECT_EQ(count_of(help.out, "Usage:"), 1u) << help.out;
    EXPECT_THAT(help.out, HasSubstr("-h, --help"));
    std::istringstream lines(help.out);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
  }
}

TEST(Help, ShowsExamplesAndDefaults) {
  for (const char* command : {"snapshot", "simulate", "fit", "compare", "replay", "run", "completion"}) {
    EXPECT_THAT(cachalot(std::string("help ") + command).out, HasSubstr("Examples:\n")) << command;
  }
  EXPECT_THAT(cachalot("help replay").out, HasSubstr("(default: 10)"));
  EXPECT_THAT(cachalot("help replay").out, HasSubstr("1,024 launches"));
}

// Returns a section of the help; "" without it.
std::string section_of(const std::string& help, const std::string& title) {
  const std::size_t begin = help.find("\n" + title + ":\n");
  if (begin == std::string::npos) return "";
  return help.substr(begin, help.find("\n\n", begin) - begin);
}

TEST(Help, HasTheOptionsInGroups) {
  for (const char* command : {"simulate", "fit", "advise"}) {
    const std::string help = cachalot(std::string("help ") + command).out;
    const std::string of_the_run = section_of(help, "Options of the simulated run");
    for (const char* option : {"--context", "--devices", "--world-size", "--rank", "--local-rank", "--max-steps",
                               "--max-seconds", "--compute", "--unknown"}) {
      EXPECT_THAT(of_the_run, HasSubstr(std::string("\n  ") + option + " ")) << command;
    }
    EXPECT_THAT(section_of(help, "Options"), HasSubstr("\n  --gpu GPU"));
    EXPECT_THAT(section_of(help, "Options of the output"), HasSubstr("\n  --json"));
    EXPECT_THAT(section_of(help, "Options of every command"), HasSubstr("\n  -h, --help"));
  }
  EXPECT_THAT(section_of(cachalot("help check").out, "Limits"), HasSubstr("\n  --no-oom"));
}

TEST(Help, HasEachOptionOnce) {
  for (const std::string& command : kCommands) {
    const std::string help = cachalot("help " + command).out;
    const auto told = nlohmann::json::parse(cachalot("help --json " + command).out);
    for (const auto& option : told["options"]) {
      if (option["is_positional"]) continue;
      const std::string name = option["names"].back();
      EXPECT_EQ(count_of(help, "\n  " + name + " ") + count_of(help, "\n  " + name + "\n") +
                    count_of(help, ", " + name + " "),
                1u)
          << command << " " << name;
      EXPECT_NE(section_of(help, option["group"]), "") << command << " " << name;
    }
  }
}

TEST(Help, IsGivenWhateverElseIsWrong) {
  EXPECT_EQ(cachalot("replay --help").exit_code, 0);
  EXPECT_EQ(cachalot("advise train.py --epochs 3 --help").out, cachalot("help advise").out);
}

void expect_error(const std::string& arguments, const std::string& message) {
  const Outcome outcome = cachalot(arguments);
  EXPECT_EQ(outcome.exit_code, 2) << arguments;
  EXPECT_EQ(outcome.out, "") << arguments;
  EXPECT_EQ(outcome.err, "cachalot: " + message + "\n") << arguments;
}

TEST(Suggestions, AreMadeForCommandsOptionsAndTheirValues) {
  expect_error("simulat x", "'simulat' is not a command; did you mean 'simulate'? (see cachalot --help)");
  expect_error("frobnicate x", "'frobnicate' is not a command (see cachalot --help)");
  expect_error("help replya", "'replya' is not a command; did you mean 'replay'? (see cachalot --help)");
  expect_error("--versoin", "cachalot has no option '--versoin'; did you mean '--version'? (see cachalot --help)");
  expect_error("replay --confg x y",
               "replay has no option '--confg'; did you mean '--config'? (see cachalot replay --help)");
  expect_error("replay --confg=x y",
               "replay has no option '--confg'; did you mean '--config'? (see cachalot replay --help)");
  expect_error("replay --frobnicate", "replay has no option '--frobnicate' (see cachalot replay --help)");
  expect_error("gpus one two", "'one' is one argument too many (see cachalot gpus --help)");
  expect_error("completion zhs",
               "SHELL: 'zhs' is not one of bash, zsh, fish; did you mean 'zsh'? (see cachalot completion --help)");
  expect_error("--color sometimes", "--color: 'sometimes' is not one of auto, always, never (see cachalot --help)");
}

TEST(Suggestions, SayWhereTheWordsOfAProgramBelong) {
  expect_error("advise lm.py --epochs 8", "'lm.py' is a program, and a program follows --: cachalot advise -- lm.py");
  expect_error("advise --gpu t4 python lm.py",
               "'lm.py' is a program, and a program follows --: cachalot advise -- lm.py");
  expect_error("advise --epochs 8 -- lm.py",
               "advise has no option '--epochs'; a program and its options follow -- (see cachalot advise --help)");
  for (const char* command : {"simulate", "fit", "run"}) {
    expect_error(fmt::format("{} --epochs 8 lm.py", command),
                 fmt::format("{0} has no option '--epochs'; options of the program follow its name (see cachalot "
                             "{0} --help)",
                             command));
  }
  for (const char* command : {"explain", "check --no-oom", "snapshot", "replay", "compare", "explain --"}) {
    const std::string name = std::string(command).substr(0, std::string(command).find(' '));
    expect_error(fmt::format("{} lm.py", command),
                 fmt::format("'lm.py' is a program, and {} reads what one has written; cachalot simulate lm.py runs it "
                             "without a GPU",
                             name));
  }
}

TEST(Colors, AreForTerminalsOrWhoeverAsks) {
  const std::string code = "\033[";
  EXPECT_THAT(cachalot("--help").out, Not(HasSubstr(code)));
  EXPECT_THAT(cachalot("--help --color always").out, HasSubstr(code));
  EXPECT_THAT(cachalot("--color=always help replay", "NO_COLOR=1").out, HasSubstr(code));
  EXPECT_THAT(cachalot("--color always simulat").err, HasSubstr(code));
  EXPECT_THAT(cachalot("simulat").err, Not(HasSubstr(code)));
}

// script(1) gives the command a terminal.
TEST(Colors, OnATerminalHeedNoColorAndTerm) {
  if (run_command("script -qec true /dev/null").exit_code != 0) GTEST_SKIP() << "script(1) cannot make a terminal here";
  const auto on_terminal = [](const std::string& variables, const std::string& options) {
    return run_command(fmt::format("env -u NO_COLOR {} script -qec \"'{}' {} --help\" /dev/null", variables,
                                   CACHALOT_COMMAND, options))
        .out;
  };
  EXPECT_THAT(on_terminal("TERM=xterm", ""), HasSubstr("\033["));
  EXPECT_THAT(on_terminal("TERM=xterm NO_COLOR=1", ""), Not(HasSubstr("\033[")));
  EXPECT_THAT(on_terminal("TERM=dumb", ""), Not(HasSubstr("\033[")));
  EXPECT_THAT(on_terminal("TERM=xterm", "--color never"), Not(HasSubstr("\033[")));
}

TEST(Gpus, AreListedWithTheirMemory) {
  const Outcome list = cachalot("gpus");
  EXPECT_THAT(list.out, HasSubstr("\nl4               22.03 GiB         8.9  NVIDIA L4\n"));
  EXPECT_THAT(list.out, HasSubstr("NVIDIA GeForce RTX 3090\n"));
}

// Returns bash's offers for the words, of which the last is the one at the cursor.
std::vector<std::string> bash_offers(const std::vector<std::string>& words) {
  const TemporaryFile script;
  std::string list;
  for (const std::string& word : words) list += " '" + word + "'";
  const std::string program = fmt::format(
      "source <('{}' completion bash); COMP_WORDS=({}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _cachalot; "
      "printf '%s\\n' \"${{COMPREPLY[@]}}\"",
      CACHALOT_COMMAND, list);
  std::ofstream(script.path()) << program;
  const Outcome outcome = run_command("bash --norc '" + script.path() + "'");
  EXPECT_EQ(outcome.err, "");
  std::vector<std::string> offers;
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) offers.push_back(line);
  }
  std::ranges::sort(offers);
  return offers;
}

using Offers = std::vector<std::string>;

TEST(Completion, InBashOffersCommandsOptionsAndValues) {
  if (run_command("command -v bash").exit_code != 0) GTEST_SKIP() << "no bash here";
  EXPECT_EQ(bash_offers({"cachalot", "s"}), (Offers{"simulate", "snapshot"}));
  EXPECT_EQ(bash_offers({"cachalot", "--v"}), (Offers{"--version"}));
  EXPECT_EQ(bash_offers({"cachalot", "replay", "--mi"}), (Offers{"--min-device"}));
  EXPECT_EQ(bash_offers({"cachalot", "simulate", "--gpu", "l40"}), (Offers{"l40", "l40s"}));
  EXPECT_EQ(bash_offers({"cachalot", "simulate", "--gpu", "=", "l40"}), (Offers{"l40", "l40s"}));
  EXPECT_EQ(bash_offers({"cachalot", "--color", "always", "replay", "--color", "n"}), (Offers{"never"}));
  EXPECT_EQ(bash_offers({"cachalot", "help", "com"}), (Offers{"compare", "completion"}));
  EXPECT_EQ(bash_offers({"cachalot", "completion", ""}), (Offers{"bash", "fish", "zsh"}));
  EXPECT_EQ(bash_offers({"cachalot", "simulate", "--devices", "x"}), Offers{}) << "a number is not completed";
}

TEST(Completion, InBashOffersFilesForTracesAndPrograms) {
  if (run_command("command -v bash").exit_code != 0) GTEST_SKIP() << "no bash here";
  const std::string layers = CACHALOT_DATA_DIR "/snapshots/layers.";
  const Offers files = {layers + "pickle", layers + "py"};
  EXPECT_EQ(bash_offers({"cachalot", "snapshot", layers}), files);
  EXPECT_EQ(bash_offers({"cachalot", "replay", "--steps", layers}), files);
  EXPECT_EQ(bash_offers({"cachalot", "simulate", "--gpu", "t4", layers}), files);
  EXPECT_EQ(bash_offers({"cachalot", "simulate", "train.py", "--gpu", layers}), files) << "the program's own option";
}

TEST(Completion, InFishOffersCommandsOptionsAndValues) {
  if (run_command("command -v fish").exit_code != 0) GTEST_SKIP() << "no fish here";
  const TemporaryFile script;
  std::ofstream(script.path()) << cachalot("completion fish").out;
  const auto offers = [&](const std::string& words) {
    return run_command(fmt::format("HOME=/nonexistent fish --no-config -c \"source '{}'; complete -C '{}'\"",
                                   script.path(), words))
        .out;
  };
  EXPECT_THAT(offers("cachalot sim"), StartsWith("simulate\tRun a CUDA"));
  EXPECT_THAT(offers("cachalot replay --mi"), StartsWith("--min-device\t"));
  EXPECT_THAT(offers("cachalot simulate --gpu l40"), HasSubstr("l40s"));
}

TEST(Completion, InZshOffersCommandsOptionsAndValues) {
  if (run_command("command -v zsh").exit_code != 0) GTEST_SKIP() << "no zsh here";
  const TemporaryFile folder;
  std::filesystem::create_directories(folder.path());
  std::ofstream(folder.path() + "/_cachalot") << cachalot("completion zsh").out;
  // A zsh in a pseudo-terminal that lists what its completion offers when Tab is pressed.
  std::ofstream(folder.path() + "/offers.zsh") << R"(zmodload zsh/zpty
zpty shell "TERM=dumb zsh -f -i"
zpty -w shell "PS1=; fpath=($1 \$fpath); autoload -Uz compinit; compinit -u -D; zstyle ':completion:*' list-prompt ''; bindkey '^I' complete-word; setopt auto_list no_always_last_prompt list_ambiguous; LISTMAX=1000; COLUMNS=200"
sleep 1
zpty -n -w shell "$2"$'\t\t'
sleep 2
zpty -r -t shell text; print -r -- "$text"; while zpty -r -t shell text; do print -r -- "$text"; done
zpty -d shell
)";
  const auto offers = [&](const std::string& words) {
    return run_command(fmt::format("zsh -f '{0}/offers.zsh' '{0}' '{1}'", folder.path(), words)).out;
  };
  EXPECT_THAT(offers("cachalot simul"), HasSubstr("simulate"));
  EXPECT_THAT(offers("cachalot s"), HasSubstr("snapshot"));
  EXPECT_THAT(offers("cachalot replay --mi"), HasSubstr("--min-device"));
  EXPECT_THAT(offers("cachalot simulate --gpu l40"), HasSubstr("l40s"));
}

TEST(ManPage, HasEveryCommandAndOption) {
  const Outcome page = cachalot("man");
  EXPECT_EQ(page.exit_code, 0);
  EXPECT_THAT(page.out, StartsWith(".TH CACHALOT 1 "));
  for (const std::string& command : kCommands) EXPECT_THAT(page.out, HasSubstr(".SS cachalot " + command));
  EXPECT_THAT(page.out, HasSubstr(".B \\-\\-min\\-device"));
}

TEST(ManPage, IsWellFormed) {
  if (run_command("command -v mandoc").exit_code != 0) GTEST_SKIP() << "no mandoc here";
  const TemporaryFile page;
  std::ofstream(page.path()) << cachalot("man").out;
  const Outcome lint = run_command("mandoc -T lint -W warning '" + page.path() + "'");
  EXPECT_EQ(lint.exit_code, 0) << lint.out << lint.err;
}

}  // namespace
}  // namespace cachalot::tools
