// The `cachalot` command.
#include <string>
#include <vector>

#include "tools/commands/command_line.h"

int main(int argc, char** argv) {
  return cachalot::tools::CommandLine().run(std::vector<std::string>(argv + 1, argv + argc));
}
