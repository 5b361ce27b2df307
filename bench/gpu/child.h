// Runs parts of a program in a process of their own, because they may crash or hang, or because they measure a process's first use
// of CUDA.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace cachalot::gpu {

struct ChildEnd {
  int exit_code = -1;  // -1: it did not exit
  int signal = 0;      // the signal that ended it, or 0
  bool timed_out = false;
  std::string output;  // standard output and standard error

  bool succeeded() const { return exit_code == 0; }
  // Returns "exit status 1: <its last line>", "signal 11", ...
  std::string text() const;
};

// Starts this program again with `--child <arguments>`, and waits for it. A child that takes longer than `limit` is killed.
// `inherited` is a file descriptor that stays open in the child under the same number, or -1.
ChildEnd run_child(const std::vector<std::string>& arguments, std::chrono::seconds limit = std::chrono::seconds(60),
                   int inherited = -1);

// A child that runs beside its parent. The destructor kills it.
class Child {
 public:
  explicit Child(const std::vector<std::string>& arguments, int inherited = -1);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ChildEnd wait(std::chrono::seconds limit = std::chrono::seconds(60));

 private:
  bool ended(ChildEnd& end);
  void read_output(ChildEnd& end);

  int process_ = -1;
  int output_ = -1;
};

}  // namespace cachalot::gpu
