#include "tools/simulation/python_program.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/tools/run_command.h"
#include "tests/tools/temporary_file.h"

namespace cachalot::tools {
namespace {

TEST(PythonInterpreters, AreKnownByTheirNames) {
  for (const char* name : {"python", "python3", "python3.12", "/usr/bin/python3", "venv/bin/python"}) {
    EXPECT_TRUE(is_python_interpreter(name)) << name;
  }
  for (const char* name : {"", "pythonx", "ipython", "train.py", "python-config"}) {
    EXPECT_FALSE(is_python_interpreter(name)) << name;
  }
}

TEST(PythonPrograms, GetAnInterpreterOnlyWhereTheyNeedOne) {
  EXPECT_EQ(with_python({}), std::vector<std::string>{});
  EXPECT_EQ(with_python({"echo", "-m"}), (std::vector<std::string>{"echo", "-m"}));
  EXPECT_EQ(with_python({"python", "train.py"}), (std::vector<std::string>{"python", "train.py"}));
  EXPECT_EQ(with_python({"missing.py"}), (std::vector<std::string>{"missing.py"}));
  EXPECT_EQ(with_python({"-m", "package"}).size(), 3u);
}

// `cachalot run` becomes `python -m cachalot`.
TEST(Run, GivesTheProgramToPythonsCachalot) {
  const TemporaryFile python;
  std::ofstream(python.path()) << "#!/bin/sh\necho \"$@\"\n";
  std::filesystem::permissions(python.path(), std::filesystem::perms::owner_all);
  const auto run = [&](const std::string& arguments) {
    return run_command("CACHALOT_PYTHON='" + python.path() + "' '" CACHALOT_COMMAND "' run " + arguments);
  };
  EXPECT_EQ(run("train.py --config mine").out, "-m cachalot train.py --config mine\n");
  EXPECT_EQ(run("--config heap:pages train.py").out, "-m cachalot --config heap:pages train.py\n");
  EXPECT_EQ(run("-m package.train -x").out, "-m cachalot -m package.train -x\n");
  EXPECT_EQ(run("").err, "cachalot: no program was given; an example: cachalot run train.py\n");
  const Outcome missing = run_command("CACHALOT_PYTHON=/nowhere/python '" CACHALOT_COMMAND "' run train.py");
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_EQ(missing.err,
            "cachalot: '/nowhere/python' cannot be run: No such file or directory; CACHALOT_PYTHON may name another "
            "Python\n");
}

}  // namespace
}  // namespace cachalot::tools
