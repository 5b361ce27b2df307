// Uses what compat.c, compat_cxx.cpp and start.c are for. Exits with 0, or says what is wrong.

#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <thread>

namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "self_test: %s\n", what);
  std::exit(1);
}

struct Counted {
  static inline int alive = 0;
  Counted() { ++alive; }
  Counted(const Counted&) { ++alive; }
  ~Counted() { --alive; }
};

int constructed = 0;
struct BeforeMain {
  BeforeMain() { ++constructed; }
} before_main;

std::exception_ptr caught() {
  try {
    throw Counted();
  } catch (...) {
    return std::current_exception();
  }
}

void count_exception_pointers() {
  std::exception_ptr first = caught();
  std::exception_ptr second = first;
  first = nullptr;
  require(Counted::alive == 1, "an exception that is pointed at died");
  try {
    std::rethrow_exception(second);
  } catch (const Counted&) {
    require(Counted::alive == 1, "an exception was copied");
  }
  second = nullptr;
  require(Counted::alive == 0, "an exception that nothing points at lives");
}

void wait_for_a_thread() {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::thread thread([&] {
    const std::lock_guard lock(mutex);
    done = true;
    changed.notify_all();
  });
  {
    std::unique_lock lock(mutex);
    require(changed.wait_for(lock, std::chrono::seconds(60), [&] { return done; }), "a thread did not come");
  }
  thread.join();
  std::unique_lock lock(mutex);
  const auto begin = std::chrono::steady_clock::now();
  changed.wait_for(lock, std::chrono::milliseconds(20), [] { return false; });
  require(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(19), "a wait was too short");
}

void throw_things(long negative) {
  bool was_caught = false;
  try {
    delete[] new int[static_cast<std::size_t>(negative)];
  } catch (const std::bad_array_new_length&) {
    was_caught = true;
  }
  require(was_caught, "new int[-1] did not throw");
}

void read_numbers() {
  double number = 0;
  constexpr std::string_view kText = "-2.5e3x";
  const auto [end, error] = std::from_chars(kText.data(), kText.data() + kText.size(), number);
  require(error == std::errc() && number == -2500 && *end == 'x', "a number was not read");
}

void write_numbers() {
  char text[32];
  const std::to_chars_result shortest = std::to_chars(text, text + sizeof(text), 0.1);
  require(std::string_view(text, shortest.ptr - text) == "0.1", "a number was not written");
  const std::to_chars_result fixed = std::to_chars(text, text + sizeof(text), 2.0 / 3, std::chars_format::fixed, 4);
  require(std::string_view(text, fixed.ptr - text) == "0.6667", "a number was not written with four digits");
}

}  // namespace

int main() {
  require(constructed == 1, "a constructor did not run before main");
  count_exception_pointers();
  write_numbers();
  wait_for_a_thread();
  throw_things(-constructed);
  read_numbers();
  std::ostringstream text;
  text << "text";
  require(text.str() == "text", "a stream does not give its text");
  struct stat folder;
  require(stat("/", &folder) == 0 && S_ISDIR(folder.st_mode), "stat does not work");
  require(gettid() == getpid(), "gettid does not work");
  (void)std::random_device()();
}
