// strict:1 of CACHALOT_SIM: the program's breaches of CUDA's rules, and the objects that it has not given back when it ends, with
// the call stacks. simulator/README.md lists the findings.
//
// A call that breaks a rule fails, and the message of the failure says which rule. It is a breach if the failure is a
// mistake of the program, not a lack of memory or a request that it may make. process_mutex guards everything here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cachalot/call_stack.h"
#include "cachalot/errors.h"

CACHALOT_BEGIN
class JsonWriter;
CACHALOT_END

namespace cachalot::simulator {

// Returns the line of Python that the thread runs, "/home/me/train.py:8 in train": the innermost that is neither of an installed
// package nor of the simulator, else the innermost of a package other than torch. "" where it runs none, or this Python does not tell (3.13 and
// later). Takes no lock, and no two threads may call it at once.
std::string line_in_python();

struct Breach {
  std::string text;
  CallStack stack;
  CallStack other;  // of the other call, if two conflict; empty otherwise
  std::uint64_t times = 0;
};

// The objects that a program makes and must give back.
enum class Owned : std::uint8_t { device_memory, pool_memory, physical_memory, pinned_memory, stream, event };

class Watch {
 public:
  // Records call stacks from now on. With `tells_at_once`, each breach goes to standard error when it happens, and the
  // objects left at the end, too; otherwise write() reports them.
  void begin(bool tells_at_once);
  bool is_on() const { return is_on_; }
  // Breaches so far, also while it is off.
  std::uint64_t breaches() const { return count_; }

  // Notes a call's failure, if it is a breach.
  void note(const CudaError& failure);
  // Notes a breach. `other` is the stack of the other call, if two conflict.
  void note(const std::string& text, const CallStack& other);

  void made(Owned kind, const void* object, int device, std::size_t bytes = 0);
  void gone(Owned kind, const void* object) {
    if (is_on_) owned_.erase({kind, object});
  }
  void all_gone(int device);

  // Reports the objects that are left. To be called at the end of the process.
  void tell_what_is_left() const;
  // Writes the members "breaches", "leaks" and "kept" of an object.
  void write(JsonWriter& json) const;

 private:
  struct Object {
    CallStack stack;
    int device = 0;
    std::size_t bytes = 0;
  };
  // Objects of one kind that were made at one place.
  struct Leak {
    Owned kind{};
    CallStack stack;
    std::size_t objects = 0;
    std::size_t bytes = 0;
  };
  // The memory kept by a library that gives nothing back before the process ends, as caches do.
  struct Kept {
    std::size_t bytes = 0;
    std::size_t allocations = 0;
    std::size_t streams = 0;
    std::size_t events = 0;
  };
  struct Left {
    std::vector<Leak> leaks;  // the largest first
    std::map<std::string, Kept> kept;
  };

  void add(const std::string& text, const CallStack& other);
  Left left() const;
  static std::string text_of(const Leak& leak);
  static std::string text_of(const std::string& library, const Kept& kept);

  bool is_on_ = false;
  bool tells_at_once_ = false;
  std::uint64_t count_ = 0;
  std::deque<Breach> breaches_;
  std::map<std::pair<Owned, const void*>, Object> owned_;
};

}  // namespace cachalot::simulator
