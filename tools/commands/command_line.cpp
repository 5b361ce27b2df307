// The `cachalot` command: its words are a command, and the options of that.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cachalot/errors.h"
#include "cachalot/version.h"
#include "tools/base/quoted.h"
#include "tools/commands/command.h"
#include "tools/commands/help_text.h"

namespace cachalot::tools {
namespace {

constexpr std::string_view kDescription =
    "cachalot shows where GPU memory goes, simulates GPUs that are not there, and allocates GPU memory with less "
    "waste.";

std::string more_help(const std::string& name) {
  return fmt::format("see cachalot {}{}--help", name, name.empty() ? "" : " ");
}

// Says where the words of a program belong: "" for a command that runs none.
std::string place_of_program(const Command& command) {
  if (command.takes_program()) return "; options of the program follow its name";
  if (command.takes_program_after_dashes()) return "; a program and its options follow --";
  return "";
}

// A program where files are read: its own words would be taken for files and options of the command.
void refuse_programs(const DeclaredCommand& command) {
  const std::string_view name = command.text().name;
  for (const CLI::Option* option : command.app->get_options()) {
    if (!takes_files(*option)) continue;
    const auto& words = option->results();
    const auto script = std::ranges::find_if(words, [](const std::string& word) { return word.ends_with(".py"); });
    if (script == words.end()) continue;
    if (command.command->takes_program_after_dashes()) {
      throw InvalidArgument(
          fmt::format("'{0}' is a program, and a program follows --: cachalot {1} -- {0}", *script, name));
    }
    throw InvalidArgument(fmt::format(
        "'{0}' is a program, and {1} reads what one has written; cachalot simulate {0} runs it without a GPU", *script,
        name));
  }
}

// The first word that is left over says what is wrong. `hint` is for an option that resembles none.
[[noreturn]] void refuse_word(const CLI::App& app, const std::string& name, const std::string& word,
                              const std::string& hint) {
  if (!word.starts_with('-')) {
    throw InvalidArgument(fmt::format("'{}' is one argument too many ({})", word, more_help(name)));
  }
  const std::string option = word.substr(0, word.find('='));
  std::vector<std::string> owned;
  for (const OptionText& known : options_of(app)) owned.insert(owned.end(), known.names.begin(), known.names.end());
  const std::string question = question_about(option, owned);
  throw InvalidArgument(fmt::format("{} has no option '{}'{} ({})", name.empty() ? "cachalot" : name, option,
                                    question.empty() ? hint : question, more_help(name)));
}

// Returns CLI11's own words, except for a missing argument.
std::string problem(const CLI::App& app, const CLI::ParseError& error) {
  if (dynamic_cast<const CLI::RequiredError*>(&error) == nullptr) return error.what();
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_required() && option->count() == 0)
      return fmt::format("no {} was given", option->get_single_name());
  }
  return error.what();
}

// CLI11 would take the next word: a file that is read, say, as the file that is written.
void refuse_empty_values(const std::vector<std::string>& words) {
  const auto empty = std::ranges::find_if(
      words, [](const std::string& word) { return word.size() > 3 && word.starts_with("--") && word.ends_with('='); });
  CACHALOT_REQUIRE(empty == words.end(), "'{}' has no value", *empty);
}

// One line, which begins with "cachalot:". Words and names of files may have characters that control a terminal.
int fail(const Styles& styles, std::string message) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  const auto is_shown = [](unsigned char byte) { return byte >= 0x20 && byte != 0x7f; };
  std::string shown;
  print_escaped(std::back_inserter(shown), message, message.size(), is_shown);
  tell(fmt::format("{} {}\n", styles.err.bad("cachalot:"), shown));
  return kUsageError;
}

}  // namespace

const DeclaredCommand& Declarations::find(std::string_view name) const {
  const auto found = std::ranges::find_if(commands, [&](const auto& command) { return command.text().name == name; });
  CACHALOT_REQUIRE(found != commands.end(), "'{}' is not a command{} ({})", name, question_about(name, names()),
                   more_help(""));
  return *found;
}

std::vector<std::string_view> Declarations::names() const {
  std::vector<std::string_view> names;
  for (const DeclaredCommand& command : commands) names.push_back(command.text().name);
  return names;
}

void print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void tell(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

namespace {

// The command line of `cachalot`: finds the command, reads its options and runs it.
class CommandLine {
 public:
  CommandLine() {
    std::unique_ptr<Command> commands[] = {make_explain_command(),
                                           make_simulate_command(),
                                           make_fit_command(),
                                           make_advise_command(),
                                           make_snapshot_command(),
                                           make_compare_command(),
                                           make_replay_command(),
                                           make_diff_command(),
                                           make_check_command(),
                                           make_convert_command(),
                                           make_run_command(),
                                           make_top_command(),
                                           make_budget_command(),
                                           make_gpus_command(),
                                           make_help_command(declarations_),
                                           make_completion_command(declarations_),
                                           make_man_command(declarations_)};
    declarations_.root.description(std::string(kDescription));
    declarations_.root.option_defaults()->group(kOptions);
    add_common_options(declarations_.root);
    declarations_.root.add_flag("--version", wants_version_, "Print the version");
    for (std::unique_ptr<Command>& command : commands) {
      auto app = std::make_unique<CLI::App>();
      app->option_defaults()->group(kOptions);
      command->declare(*app);
      app->option_defaults()->group(kCommonOptions);
      add_common_options(*app);
      declarations_.commands.push_back({std::move(command), std::move(app)});
    }
  }

  // Runs the words behind "cachalot". Returns the exit code; tells errors in one line on standard error.
  int run(std::vector<std::string> words) {
    try {
      const int code = run_words(std::move(words));
      if (std::ferror(stdout) != 0) return fail(styles(), "cannot write to standard output");
      return code;
    } catch (const std::bad_alloc&) {
      return fail(styles(), "the host has no memory left");
    } catch (const std::exception& error) {
      return fail(styles(), error.what());
    }
  }

 private:
  int run_words(std::vector<std::string> words) {
    const auto command_at = words.begin() + static_cast<std::ptrdiff_t>(end_of_options(declarations_.root, words));
    const std::string mistake = parse(declarations_.root, {words.begin(), command_at});
    words.erase(words.begin(), command_at);
    if (declarations_.root.count("--help") == 0) refuse_mistakes(declarations_.root, "", mistake, "");
    if (declarations_.root.count("--version") > 0) {
      print("cachalot " CACHALOT_VERSION_STRING "\n");
    } else if (words.empty() || declarations_.root.count("--help") > 0) {
      print(help_text(declarations_, styles().out));
    } else {
      const DeclaredCommand& found = declarations_.find(words.front());
      words.erase(words.begin());
      return run_command(found, std::move(words));
    }
    return 0;
  }

  int run_command(const DeclaredCommand& command, std::vector<std::string> words) {
    if (command.command->takes_program() || command.command->takes_program_after_dashes())
      command.command->set_program(take_program(command, words));
    const std::string mistake = parse(*command.app, std::move(words));
    if (command.app->count("--help") > 0) {
      print(help_text(command, styles().out));
      return 0;
    }
    refuse_programs(command);
    refuse_mistakes(*command.app, std::string(command.text().name), mistake, place_of_program(*command.command));
    return command.command->run(styles());
  }

  // Reads options into the command's variables. Returns the mistake that CLI11 found, "" for none.
  static std::string parse(CLI::App& app, std::vector<std::string> words) {
    refuse_empty_values(words);
    std::ranges::reverse(words);  // as CLI11 wants them
    try {
      app.parse(words);
      return "";
    } catch (const CLI::ParseError& error) {
      return problem(app, error);
    }
  }

  // Throws InvalidArgument, which says what is wrong and what was meant.
  static void refuse_mistakes(const CLI::App& app, const std::string& name, const std::string& mistake,
                              const std::string& hint) {
    const std::vector<std::string> left = app.remaining();
    if (!left.empty()) refuse_word(app, name, left.front(), hint);
    if (!mistake.empty()) throw InvalidArgument(fmt::format("{} ({})", mistake, more_help(name)));
  }

  std::vector<std::string> take_program(const DeclaredCommand& command, std::vector<std::string>& words) const {
    const auto end = command.command->takes_program()
                         ? words.begin() + static_cast<std::ptrdiff_t>(end_of_options(*command.app, words))
                         : std::ranges::find(words, "--");
    std::vector<std::string> program(end, words.end());
    words.erase(end, words.end());
    if (!program.empty() && program.front() == "--") program.erase(program.begin());
    return program;
  }

  void add_common_options(CLI::App& app) {
    app.set_help_flag();  // CLI11's own comes first in its list
    app.allow_extras();
    app.add_option("--color", color_, "Colours in what is printed: auto (on a terminal), always or never")
        ->type_name("WHEN")
        ->check(one_of_its_choices("WHEN"));
    app.add_flag("-h,--help", wants_help_, "Print this help");
  }

  Styles styles() const {
    return {.out = Style(wants_color(color_, STDOUT_FILENO)), .err = Style(wants_color(color_, STDERR_FILENO))};
  }

  Declarations declarations_;
  std::string color_ = "auto";
  bool wants_help_ = false;
  bool wants_version_ = false;
};

}  // namespace

}  // namespace cachalot::tools

int main(int argc, char** argv) {
  return cachalot::tools::CommandLine().run(std::vector<std::string>(argv + 1, argv + argc));
}
