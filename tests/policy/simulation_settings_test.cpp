// CACHALOT_SIM: its grammar, its keys, and the variables of former versions.
#include "simulator/device/simulation_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cachalot {
namespace {

using testing::HasSubstr;

std::string refusal_of_settings(std::string_view text) {
  try {
    SimulationSettings::parse(text);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

std::string value_of(std::string_view text, std::string_view key) {
  const SimulationSettings settings = SimulationSettings::parse(text);
  const std::string* const value = settings.find(key);
  return value == nullptr ? "(none)" : *value;
}

TEST(SimulationSettings, HaveEachKey) {
  for (const char* key :
       {"gpu",          "memory",        "devices", "context",     "contexts",  "latency",       "launch_ns",
        "mapping",      "legacy_stream", "copies",  "copy_bytes",  "compute",   "compute_bytes", "compute_work",
        "unknown",      "faults",        "strict",  "log",         "report",    "address_space", "shared",
        "absent_ranks", "observe",       "trace",   "traces_only", "max_steps", "races"}) {
    EXPECT_EQ(value_of(std::string(key) + ":7", key), "7");
  }
  EXPECT_EQ(value_of("gpu:l4,memory:24GiB", "memory"), "24GiB");
  EXPECT_EQ(value_of(" gpu : l4 , memory : 24 GiB ", "memory"), "24GiB") << "spaces are ignored";
  EXPECT_EQ(value_of("", "gpu"), "(none)");
}

TEST(SimulationSettings, QuoteWhatHasSeparators) {
  EXPECT_EQ(value_of("faults:\"malloc:3,free:1:error=700\",gpu:l4", "faults"), "malloc:3,free:1:error=700");
  EXPECT_EQ(value_of("gpu:'RTX 3090'", "gpu"), "RTX 3090");
  EXPECT_EQ(value_of("log:'/tmp/it''s \"here\"'", "log"), "/tmp/it's \"here\"");
  EXPECT_EQ(value_of("log:\"\"", "log"), "");
}

TEST(SimulationSettings, AreReadAsTheyWereWritten) {
  for (const char* value : {"l4", "", " ", "a,b", "a:b", "[a]", "it's", "say \"it\"", "/tmp/%p, \"x\": [y]'", "\t", "ü",
                            "=", "\\", "$HOME", "\"", "\"\""}) {
    SimulationSettings settings;
    settings.set("gpu", "l4");
    settings.set("log", value);
    EXPECT_EQ(value_of(settings.text(), "log"), value) << settings.text();
  }
}

TEST(SimulationSettings, MayBeAsLongAsAPath) {
  const std::string path = '/' + std::string(4095, 'x');
  EXPECT_EQ(value_of("log:" + path, "log"), path);
  EXPECT_THAT(refusal_of_settings("log:" + path + "x"), HasSubstr("has more than 4096 characters"));
}

TEST(SimulationSettings, OfStrangersAreRefusedWithTheRule) {
  const std::pair<const char*, const char*> rows[] = {
      {"memroy:8GiB", "CACHALOT_SIM: Unrecognized key 'memroy' (value '8GiB'); did you mean 'memory'?"},
      {"colour:red", "Unrecognized key 'colour' (value 'red'); the keys are gpu, memory, devices, "},
      {"gpu=l4", "CACHALOT_SIM: option gpu=l4: found the end after the key: ':' and a value are expected there"},
      {"gpu:l4;memory:8GiB", "option gpu: bad value 'l4;memory': found ':' after it, where ',' or the end is expected"},
      {"gpu:l4 memory:8GiB", "option gpu: bad value 'l4memory': found ':' after it"},
      {"gpu:l4,", "option gpu: bad value 'l4': found the end after its ',', where a key is expected"},
      {",gpu:l4", "CACHALOT_SIM: settings: found ',' at the start, where a key is expected"},
      {"gpu:", "option gpu: bad value '': found the end where a value is expected"},
      {"gpu:l4,gpu:h100", "option gpu: bad value 'h100': gpu is given twice, first as 'l4'"},
      {"faults:malloc:3",
       "bad value 'malloc': found ':' after it, where ',' or the end is expected; a value with ',' or "
       "':' stands in quotes"},
      {"faults:[malloc:3]", "it takes one value, not a list; a value with ',' or ':' stands in quotes"},
      {"log:'/tmp/log", "CACHALOT_SIM: settings: the quote before '/tmp/log' has no end"},
      {"l4", "option l4: found the end after the key"},
      {"GPU:l4", "Unrecognized key 'GPU' (value 'l4'); did you mean 'gpu'?"},
      {"log:'/tmp/a'b", "found 'b' after it, where ',' or the end is expected"},
  };
  for (const auto& [text, message] : rows) EXPECT_THAT(refusal_of_settings(text), HasSubstr(message)) << text;
}

TEST(SimulationSettings, NameTheKeyOfWhatIsRefusedLater) {
  const SimulationSettings settings = SimulationSettings::parse("devices:many");
  const auto use = [](std::string_view) { throw InvalidArgument("it is no number"); };
  EXPECT_NO_THROW(settings.with("gpu", use));
  try {
    settings.with("devices", use);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "CACHALOT_SIM: option devices: it is no number");
  }
}

// Sets variables while it lives.
class Variables {
 public:
  explicit Variables(std::initializer_list<std::pair<const char*, const char*>> variables) : variables_(variables) {
    for (const auto& [name, value] : variables_) setenv(name, value, 1);
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;
  ~Variables() {
    for (const auto& variable : variables_) unsetenv(variable.first);
  }

 private:
  std::vector<std::pair<const char*, const char*>> variables_;
};

TEST(FormerVariables, AreReadWhereTheVariableDoesNotHaveTheKey) {
  testing::internal::CaptureStderr();
  {
    const Variables variables{{"CACHALOT_SIM", "gpu:l4"},
                              {"CACHALOT_SIM_GPU", "h100"},
                              {"CACHALOT_SIM_LOG", "/tmp/a,b"},
                              {"CACHALOT_SIM_MEMORY", ""}};
    for (int i = 0; i < 2; ++i)
      EXPECT_EQ(SimulationSettings::of_environment().text(), "gpu:l4,log:\"/tmp/a,b\"") << "an empty one is as none";
  }
  EXPECT_EQ(SimulationSettings::of_environment().text(), "");
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_THAT(told, HasSubstr("cachalot: the next version does not read CACHALOT_SIM_GPU, CACHALOT_SIM_LOG; set "
                              "CACHALOT_SIM='gpu:l4,log:\"/tmp/a,b\"'\n"));
  EXPECT_EQ(std::count(told.begin(), told.end(), '\n'), 1) << "once";
}

TEST(FormerVariables, ThatNeverWereAreRefused) {
  const Variables variables{{"CACHALOT_SIM_MEMROY", "8GiB"}};
  try {
    SimulationSettings::of_environment();
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "CACHALOT_SIM_MEMROY: there is no such variable, but keys of CACHALOT_SIM; did you mean 'memory'?");
  }
}

TEST(FormerVariables, AreKnownByTheirNames) {
  for (const char* name : {"CACHALOT_SIM", "CACHALOT_SIM_GPU", "CACHALOT_SIM_MAX_STEPS"})
    EXPECT_TRUE(SimulationSettings::is_variable(name)) << name;
  for (const char* name : {"CACHALOT_SIMULATE", "CACHALOT_SIMULATOR", "CACHALOT_SIM_", "CACHALOT_SIM_X", ""})
    EXPECT_FALSE(SimulationSettings::is_variable(name)) << name;
}

}  // namespace
}  // namespace cachalot
