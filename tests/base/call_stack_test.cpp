#include "cachalot/call_stack.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "base/bytes.h"
#include "tests/resident_memory.h"

// Outside of cachalot's namespace, as users' functions are: the library leaves its own frames out.
namespace user {

using cachalot::CallFrame;
using cachalot::CallStack;
using Frames = CallStack::Frames;

[[gnu::noinline]] CallStack here() {
  CallStack stack = CallStack::capture();
  return stack;
}

[[gnu::noinline]] CallStack taken_by_the_caller() {
  CallStack stack = CallStack::capture(Frames::native, /*skip=*/1);
  return stack;
}

[[gnu::noinline]] CallStack taken_at_depth(int depth) {
  CallStack stack = depth == 0 ? CallStack::capture() : taken_at_depth(depth - 1);
  return stack;
}

[[gnu::noinline]] CallStack told_where(const std::string& place) {
  CallStack stack = place.empty() ? CallStack() : CallStack::capture();
  return stack;
}

bool names(const CallStack& stack, std::string_view function) {
  const std::vector<CallFrame> frames = stack.frames();
  return std::ranges::any_of(
      frames, [&](const CallFrame& frame) { return frame.function.find(function) != std::string::npos; });
}

std::size_t two_script_frames(cachalot::Span<cachalot::ScriptFrame> out) noexcept {
  out[0] = {cachalot::intern_text("train_step"), cachalot::intern_text("train.py"), 41};
  out[1] = {cachalot::intern_text("<module>"), cachalot::intern_text("train.py"), 60};
  return 2;
}

std::size_t endless_script_frames(cachalot::Span<cachalot::ScriptFrame> out) noexcept {
  std::ranges::fill(out, cachalot::ScriptFrame{"", "", 1});
  return out.size();
}

std::size_t asking_again(cachalot::Span<cachalot::ScriptFrame> out) noexcept {
  out[0] = {"", "", static_cast<int>(CallStack::capture().script_frames().size())};
  return 1;
}

class Provider {
 public:
  explicit Provider(cachalot::ScriptFrameProvider provider) : before_(cachalot::set_script_frames(provider)) {}
  ~Provider() { cachalot::set_script_frames(before_); }

 private:
  cachalot::ScriptFrameProvider before_;
};

TEST(CallStack, NamesTheFunctionFileAndLineWhereItWasTaken) {
  const CallStack stack = here();
  const int line = __LINE__ - 1;
  const std::vector<CallFrame> frames = stack.frames();
  ASSERT_GE(frames.size(), 2u);
  if (!cachalot::has_debug_information_reader()) GTEST_SKIP() << "built without libbacktrace";
  EXPECT_NE(frames[0].function.find("user::here"), std::string::npos) << to_string(stack);
  EXPECT_TRUE(frames[0].file.ends_with("call_stack_test.cpp")) << to_string(stack);
  EXPECT_NE(frames[1].function.find("NamesTheFunction"), std::string::npos) << to_string(stack);
  EXPECT_EQ(frames[1].line, line) << to_string(stack);
  EXPECT_NE(to_string(stack).find("call_stack_test.cpp:" + std::to_string(line)), std::string::npos);
}

TEST(CallStack, KeepsAFunctionThatTakesOneOfTheLibrarysTypes) {
  const CallStack stack = user::told_where("here");
  if (!cachalot::has_debug_information_reader()) GTEST_SKIP() << "built without libbacktrace";
  EXPECT_NE(stack.frames().at(0).function.find("told_where(std::"), std::string::npos) << to_string(stack);
}

TEST(CallStack, SkipsFramesThatTheCallerDoesNotWant) {
  const CallStack stack = taken_by_the_caller();
  if (!cachalot::has_debug_information_reader()) GTEST_SKIP() << "built without libbacktrace";
  EXPECT_FALSE(names(stack, "taken_by_the_caller")) << to_string(stack);
  EXPECT_TRUE(names(stack, "SkipsFrames")) << to_string(stack);
}

TEST(CallStack, IsEqualWhereItWasTakenAtTheSamePlace) {
  std::vector<CallStack> stacks;
  for (int i = 0; i < 2; ++i) stacks.push_back(here());
  EXPECT_EQ(stacks[0], stacks[1]);
  EXPECT_EQ(stacks[0].hash(), stacks[1].hash());
  const CallStack elsewhere = here();
  EXPECT_FALSE(stacks[0] == elsewhere);
  const std::unordered_set<CallStack> places{stacks[0], stacks[1], elsewhere, CallStack()};
  EXPECT_EQ(places.size(), 3u);
}

TEST(CallStack, KeepsTheInnermostFramesOfADeepOne) {
  const CallStack stack = taken_at_depth(200);
  EXPECT_EQ(stack.return_addresses().size(), CallStack::kMaxFrames);
  if (!cachalot::has_debug_information_reader()) GTEST_SKIP() << "built without libbacktrace";
  EXPECT_FALSE(names(stack, "KeepsTheInnermost"));
}

TEST(CallStack, IsEmptyUntilItIsTaken) {
  const CallStack none;
  EXPECT_TRUE(none.empty());
  EXPECT_TRUE(none.frames().empty());
  EXPECT_EQ(to_string(none), "");
  EXPECT_EQ(none, CallStack());
  EXPECT_FALSE(none == here());
}

TEST(CallStack, PutsAnInterpretersFramesBeforeNativeOnes) {
  const Provider provider(two_script_frames);
  const CallStack both = here();
  ASSERT_EQ(both.script_frames().size(), 2u);
  EXPECT_FALSE(both.return_addresses().empty());
  EXPECT_EQ(to_string(both).rfind("#0 train_step at train.py:41\n#1 <module> at train.py:60\n#2 ", 0), 0u)
      << to_string(both);

  const CallStack script = CallStack::capture(Frames::script_or_native);
  EXPECT_TRUE(script.return_addresses().empty());
  EXPECT_EQ(to_string(script), "#0 train_step at train.py:41\n#1 <module> at train.py:60\n");
  EXPECT_TRUE(CallStack::capture(Frames::native).script_frames().empty());
}

TEST(CallStack, TakesNativeFramesWhereNoInterpreterRuns) {
  EXPECT_FALSE(CallStack::capture(Frames::script_or_native).return_addresses().empty());
}

TEST(CallStack, BoundsWhatAProviderSays) {
  const Provider provider(endless_script_frames);
  EXPECT_EQ(here().script_frames().size(), CallStack::kMaxFrames);
}

TEST(CallStack, DoesNotAskAProviderAgainForWhatItSetsOff) {
  const Provider provider(asking_again);
  const CallStack stack = here();
  ASSERT_EQ(stack.script_frames().size(), 1u);
  EXPECT_EQ(stack.script_frames()[0].line, 0) << "the inner stack had frames of the provider";
}

TEST(CallStack, IsTakenAndNamedByManyThreadsAtOnce) {
  const std::string expected = to_string(here()).substr(0, 20);
  std::vector<std::thread> threads;
  std::vector<std::string> texts(4);
  for (std::string& text : texts) {
    threads.emplace_back([&text] {
      for (int i = 0; i < 20; ++i) text = to_string(here());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : texts) EXPECT_EQ(text.substr(0, 20), expected);
}

// Each reader of debug information takes tens of MiB permanently: a library that no call came from must not need
// another.
TEST(CallStack, IsNamedInBoundedMemoryWhateverIsLoaded) {
  const CallStack stack = CallStack::capture();
  EXPECT_FALSE(stack.frames().empty());
  const std::size_t before = cachalot::resident_bytes();
  int loaded = 0;
  for (const char* library : {"libresolv.so.2", "libanl.so.1", "libutil.so.1", "librt.so.1", "libthread_db.so.1"}) {
    if (dlopen(library, RTLD_NOW | RTLD_LOCAL) != nullptr) ++loaded;
    EXPECT_FALSE(stack.frames().empty());
  }
  if (loaded < 2) GTEST_SKIP() << "too few libraries to load are here";
  if (cachalot::kResidentMemoryIsThePrograms) {
    EXPECT_LT(cachalot::resident_bytes(), before + 8 * cachalot::kMiB);
  }
}

TEST(InternText, GivesOneAddressForOneText) {
  const std::string text = "a name";
  EXPECT_EQ(cachalot::intern_text(text), cachalot::intern_text(std::string(text)));
  EXPECT_NE(cachalot::intern_text(text), cachalot::intern_text("another"));
  EXPECT_STREQ(cachalot::intern_text(text), "a name");
}

}  // namespace user
