// Relations between processes: the inheritance of a forked child, signals, and the arguments of programs that it
// starts.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cachalot/version.h"

CACHALOT_BEGIN

// A ForkAware object is inherited by a forked child, which must not use it: CUDA does not work in a process that was forked
// from one that uses it, and any lock may be held by a thread that was not forked along. Such an object knows its owner: it
// is notified in the child before fork() returns there, so that its fast paths need not ask.
//
// Not told: children of vfork(), _Fork() and clone(), which run no handlers of pthread_atfork. All they may do is exec or
// _exit.
// Thread safety: objects may come and go in any thread, and in a child as well.
class ForkAware {
 public:
  ForkAware(const ForkAware&) = delete;
  ForkAware& operator=(const ForkAware&) = delete;

  // Returns whether this process is a forked child, or a child's child, of the one that made the object.
  bool is_inherited() const { return is_inherited_; }
  // Throws InvalidArgument that names fork and the rule, if it is. `what` is the object: "the allocator".
  void require_own_process(const char* what) const {
    if (is_inherited_) [[unlikely]]
      refuse(what);
  }

 protected:
  ForkAware();
  ~ForkAware();
  // Called in the child, once. No other thread is there; locks may be held permanently, and the guarded data half
  // changed.
  virtual void on_fork() noexcept {}
  // For on_fork, of an object that the child goes on with: it is the child's own, and a child of the child is told as well.
  void adopt() noexcept;

 private:
  struct Registry;
  [[noreturn]] void refuse(const char* what) const;

  pid_t process_;
  bool is_inherited_ = false;
  ForkAware* previous_ = nullptr;  // of all in the process
  ForkAware* next_ = nullptr;
};

// While one exists, no signal interrupts this thread, nor those that it starts: the program's signals are for its own threads.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_{};
};

// The arguments of a program, as execve and posix_spawn take them: pointers to the words, with a null pointer behind the
// last, valid while the words are as they are.
inline std::vector<char*> argument_vector(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

// The identity of a process, which differs from that of others, and of a later one with its number, as /proc has it.

// Returns when the process began, in clock ticks from boot; nullopt if there is no such process.
std::optional<std::uint64_t> process_start(pid_t process);
// Returns the number of this process's namespace of process ids; 0 if it is unknown.
std::uint64_t pid_namespace();
// Returns this process's words, separated by spaces.
std::string process_command();

CACHALOT_END
