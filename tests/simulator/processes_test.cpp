// Tests that need a process of their own: of the configuration, which is read once, and of sharing.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <string>

#include "cuda_check.h"
#include "simulator/models/shared_memory_file.h"

namespace cachalot {
namespace {

// Standard output and error of the probe, run with these variables on top of a plain 64 MiB device.
std::string probe(const std::string& variables, const std::string& what) {
  const std::string command = fmt::format("{} {} {} 2>&1", variables, CACHALOT_PROBE, what);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string output;
  std::array<char, 4096> buffer;
  while (const std::size_t read = std::fread(buffer.data(), 1, buffer.size(), pipe.get()))
    output.append(buffer.data(), read);
  return output;
}

// CACHALOT_SIM with these settings on top of those of this test; one with an empty value is left out.
std::string settings(std::map<std::string, std::string> changed) {
  for (const char* key : {"copies", "devices", "gpu", "latency", "memory"}) {
    if (const char* const own = cachalot_sim_setting(key)) changed.emplace(key, own);
  }
  std::string text;
  for (const auto& [key, value] : changed) {
    if (!value.empty()) text += fmt::format("{}{}:\"{}\"", text.empty() ? "" : ",", key, value);
  }
  return fmt::format("CACHALOT_SIM='{}' ", text);
}

std::string read_file(const std::filesystem::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class SimulatorProcesses : public SimulatorTest {
 protected:
  SimulatorProcesses() {
    char folder[] = "/tmp/cachalot_simulator_test_XXXXXX";
    folder_ = mkdtemp(folder);
  }
  ~SimulatorProcesses() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

TEST_F(SimulatorProcesses, EveryModelOfTheTableIsThere) {
  EXPECT_EQ(probe("CACHALOT_SIM=gpu:h200 ", "properties"), "cudaSuccess NVIDIA H200 9.0 143167\n");
  EXPECT_EQ(probe("CACHALOT_SIM= ", "properties"), "cudaSuccess NVIDIA H100 80GB HBM3 9.0 81004\n");
  for (const char* model : {"h100", "a100", "a100-80", "l4", "rtx4090", "t4", "v100", "v100-32"})
    EXPECT_EQ(probe(std::string("CACHALOT_SIM=gpu:") + model, "properties").substr(0, 12), "cudaSuccess ") << model;
}

struct BadVariable {
  std::string setting;
  std::string message;
};

TEST_F(SimulatorProcesses, ABadVariableIsOneClearErrorAndNoDevice) {
  for (const auto& [setting, message] : std::initializer_list<BadVariable>{
           {settings({{"gpu", "b52"}}), "CACHALOT_SIM: option gpu: 'b52' is not a known GPU: "},
           {settings({{"memory", "lots"}}), "CACHALOT_SIM: option memory: 'lots' is not a size: "},
           {settings({{"memory", "1024"}}),
            "CACHALOT_SIM: option memory: '1024' is not valid: it must be from 2.00 MiB to "},
           {settings({{"devices", "65"}}),
            "CACHALOT_SIM: option devices: '65' is not valid: it must be a whole number from 0 to 64"},
           {settings({{"launch_ns", "-1"}}),
            "CACHALOT_SIM: option launch_ns: '-1' is not valid: it must be a whole number from 0"},
           {settings({{"copy_bytes", "1.5"}}), "CACHALOT_SIM: option copy_bytes: '1.5' is not a size"},
           {settings({{"copies", "bus"}}),
            "CACHALOT_SIM: option copies: 'bus' is not valid: it must be fixed or published"},
           {settings({{"latency", "low"}}),
            "CACHALOT_SIM: option latency: 'low' is not valid: it must be published or none"},
           {settings({{"address_space", "1MiB"}}),
            "CACHALOT_SIM: option address_space: '1MiB' is not valid: it must be from 1024.00 MiB"},
           {settings({{"contexts", "some"}}),
            "CACHALOT_SIM: option contexts: 'some' is not valid: it must be documented, all or none"},
           {settings({{"legacy_stream", "joins"}}),
            "CACHALOT_SIM: option legacy_stream: 'joins' is not valid: it must be waits or alone"},
           {settings({{"mapping", "late"}}),
            "CACHALOT_SIM: option mapping: 'late' is not valid: it must be at_once or waits"},
           {settings({{"absent_ranks", "3"}}),
            "CACHALOT_SIM: option absent_ranks: '3' is not valid: it must be 0 or 1"},
           {settings({{"strict", "yes"}}), "CACHALOT_SIM: option strict: 'yes' is not valid: it must be 0 or 1"},
           {"CACHALOT_SIM=memroy:1GiB",
            "CACHALOT_SIM: Unrecognized key 'memroy' (value '1GiB'); did you mean 'memory'?"},
           {"CACHALOT_SIM_MEMROY=1GiB",
            "CACHALOT_SIM_MEMROY: there is no such variable, but keys of CACHALOT_SIM; did you mean 'memory'?"},
           {"CUDA_VISIBLE_DEVICES=MIG-1234", "CUDA_VISIBLE_DEVICES: 'MIG-1234' is not simulated: GPUs are not divided"},
           {settings({{"log", "/nowhere/log"}}),
            "CACHALOT_SIM: option log: '/nowhere/log' cannot be written: No such file"},
           {settings({{"report", "/nowhere/report"}}),
            "CACHALOT_SIM: option report: '/nowhere/report' cannot be written"},
           {settings({{"shared", "/nowhere/file"}}),
            "CACHALOT_SIM: option shared: '/nowhere/file' cannot be used: No such file"},
           {settings({{"faults", "malloc"}}), "CACHALOT_SIM: option faults: 'malloc' is not valid: a fault is CALL:N"},
           {settings({{"faults", "calloc:1"}}),
            "CACHALOT_SIM: option faults: 'calloc' is not valid: a call is one of malloc, free"},
           {settings({{"faults", "malloc:0"}}),
            "CACHALOT_SIM: option faults: '0' is not valid: it must be a whole number from 1"},
       }) {
    const std::string output = probe(setting, "count");
    EXPECT_EQ(output.find("cachalot simulator: " + message), 0) << setting << " gave " << output;
    EXPECT_NE(output.find("\ncudaErrorInitializationError 0\n"), std::string::npos) << output;
  }
}

TEST_F(SimulatorProcesses, APathMayHaveAnyCharacters) {
  const auto path = folder_ / "a, b: [c] \"d\"";
  const std::string quoted = std::regex_replace(path.string(), std::regex("\""), "\"\"");
  probe(fmt::format("CACHALOT_SIM='devices:1,report:\"{}\"'", quoted), "allocate");
  EXPECT_EQ(nlohmann::json::parse(read_file(path)).at("devices").size(), 1u);
}

// The variables are those of versions before CACHALOT_SIM.
TEST_F(SimulatorProcesses, AVariableOfAKeyIsReadAndOneLineSaysWhatToSet) {
  EXPECT_EQ(probe("CACHALOT_SIM=devices:2 CACHALOT_SIM_GPU=h200 CACHALOT_SIM_DEVICES=1", "properties"),
            "cachalot: the next version does not read CACHALOT_SIM_GPU, CACHALOT_SIM_DEVICES; set "
            "CACHALOT_SIM='devices:2,gpu:h200'\ncudaSuccess NVIDIA H200 9.0 143167\n");
  EXPECT_EQ(probe("CACHALOT_SIM=devices:2 CACHALOT_SIM_DEVICES=", "count"), "cudaSuccess 2\n");
}

TEST_F(SimulatorProcesses, NoDevicesIsNoDevice) {
  EXPECT_EQ(probe(settings({{"devices", "0"}}), "count"), "cudaErrorNoDevice 0\n");
}

TEST_F(SimulatorProcesses, OnlyVisibleDevicesAreThere) {
  const auto count = [](const std::string& visible) {
    return probe(settings({{"devices", "4"}}) + "CUDA_VISIBLE_DEVICES=" + visible, "count");
  };
  EXPECT_EQ(count("3,1"), "cudaSuccess 2\n");
  EXPECT_EQ(count("0,7,1"), "cudaSuccess 1\n") << "none behind one that is not there";
  EXPECT_EQ(count("0,0"), "cudaSuccess 1\n");
  EXPECT_EQ(count(""), "cudaErrorNoDevice 0\n");
  EXPECT_EQ(count("-1"), "cudaErrorNoDevice 0\n");
  const std::string uuid = "GPU-63616368-616c-6f74-2d73-696d2d67700";
  EXPECT_EQ(count(uuid + "3," + uuid + "1"), "cudaSuccess 2\n");
  EXPECT_EQ(count("2," + uuid + "9"), "cudaSuccess 1\n") << "no device has it";
  EXPECT_EQ(count(uuid), "cudaErrorNoDevice 0\n") << "several begin so";
}

TEST_F(SimulatorProcesses, FaultsStrikeAsPlanned) {
  EXPECT_EQ(probe("", "allocate"), "cudaSuccess cudaSuccess cudaSuccess cudaSuccess\n");
  EXPECT_EQ(probe(settings({{"faults", "malloc:2"}}), "allocate"),
            "cudaSuccess cudaErrorMemoryAllocation cudaSuccess cudaSuccess\n");
  EXPECT_EQ(probe(settings({{"faults", "malloc:2+,free:1:error=700"}}), "allocate"),
            "cudaSuccess cudaErrorMemoryAllocation cudaErrorMemoryAllocation cudaErrorIllegalAddress\n");
  EXPECT_EQ(probe(settings({{"faults", "host_malloc:1,host_free:1:error=700"}}), "pin"),
            "cudaErrorMemoryAllocation cudaSuccess cudaErrorIllegalAddress cudaSuccess\n");
}

TEST_F(SimulatorProcesses, TheUserChoosesWhatNeedsAContext) {
  EXPECT_EQ(probe("", "contexts"), "201 0\n") << "cuStreamCreate, as documented, and cuMemCreate";
  EXPECT_EQ(probe(settings({{"contexts", "documented"}}), "contexts"), "201 0\n");
  EXPECT_EQ(probe(settings({{"contexts", "all"}}), "contexts"), "201 201\n");
  EXPECT_EQ(probe(settings({{"contexts", "none"}}), "contexts"), "0 0\n");
}

TEST_F(SimulatorProcesses, TheLegacyStreamMayBeAlone) {
  EXPECT_EQ(probe("", "legacy_stream"), "cudaErrorNotReady\n");
  EXPECT_EQ(probe(settings({{"legacy_stream", "alone"}}), "legacy_stream"), "cudaSuccess\n");
}

TEST_F(SimulatorProcesses, MappingMayWaitForWorkAndMayLackMemory) {
  EXPECT_EQ(probe("", "map"), "0 0 0 cudaErrorNotReady\n");
  EXPECT_EQ(probe(settings({{"mapping", "waits"}}), "map"), "0 0 0 cudaSuccess\n");
  EXPECT_EQ(probe(settings({{"faults", "map:1"}}), "map"), "2 1 1 cudaErrorNotReady\n");
  EXPECT_EQ(probe(settings({{"faults", "set_access:1"}}), "map"), "0 2 0 cudaErrorNotReady\n");
  EXPECT_EQ(probe(settings({{"faults", "unmap:1"}}), "map"), "0 0 2 cudaErrorNotReady\n");
}

// Returns the output of a strict run on a program, without its stacks.
std::string breaches_of(const std::string& name) {
  std::stringstream output(probe(settings({{"strict", "1"}}), "rules " + name));
  std::string kept;
  for (std::string line; std::getline(output, line);) {
    if (!line.starts_with("    ")) kept += line + "\n";
  }
  return kept;
}

TEST_F(SimulatorProcesses, AStrictRunTellsOfACallWithADeadStreamOnce) {
  const std::string output = probe(settings({{"strict", "1"}}), "rules use_dead_stream");
  EXPECT_EQ(
      output.find("cachalot simulator: CUDA error in cudaStreamQuery: CUDA_ERROR_INVALID_HANDLE: it was destroyed"), 0)
      << output;
  EXPECT_NE(output.find("main"), std::string::npos) << output;
  EXPECT_EQ(output.find("cudaStreamQuery", output.find("cudaStreamQuery") + 1), std::string::npos) << output;
  EXPECT_EQ(probe("", "rules use_dead_stream"), "");
}

TEST_F(SimulatorProcesses, AStrictRunFindsUsesOfMemoryInNoOrder) {
  EXPECT_EQ(breaches_of("fill_unordered"),
            "cachalot simulator: cudaMemset writes memory that cudaMemset on another stream still writes, and nothing "
            "orders the two\n  the other call:\n");
  EXPECT_EQ(
      breaches_of("write_one_buffer_twice"),
      "cachalot simulator: cudaMemcpyAsync writes memory that cudaMemcpyAsync on another stream still writes, and "
      "nothing orders the two\n  the other call:\n");
  EXPECT_EQ(
      breaches_of("free_unordered"),
      "cachalot simulator: cudaFreeAsync frees memory that cudaMemset on another stream still writes, and nothing "
      "orders the two\n  the other call:\n");
  EXPECT_EQ(breaches_of("unmap_at_once"),
            "cachalot simulator: cuMemUnmap of memory that cudaMemset still writes\n  the other call:\n");
}

// "0x…" for each address.
std::string without_addresses(const std::string& text) {
  return std::regex_replace(text, std::regex("0x[0-9a-f]+"), "0x…");
}

TEST_F(SimulatorProcesses, AUseOfMemoryThatIsAsleepIsReported) {
  const std::string copy =
      "cachalot simulator: cudaMemcpyAsync uses [0x…, +1), but [0x…, +2097152) is asleep, or was freed: cuMemUnmap "
      "took "
      "its memory, and only its addresses are left. Wake it first (restore_physical)\n";
  EXPECT_EQ(without_addresses(probe("", "rules copy_from_sleeping")), copy + "cudaErrorInvalidValue\n");
  EXPECT_EQ(without_addresses(breaches_of("copy_from_sleeping")), copy + "  the other call:\ncudaErrorInvalidValue\n");
  EXPECT_EQ(without_addresses(probe("", "rules copy_from_sleeping_again")),
            copy + "cachalot simulator: and 2 more uses of memory that is asleep, by the same calls\n");
  EXPECT_EQ(without_addresses(breaches_of("copy_from_sleeping_again")), copy + "  the other call:\n");
  EXPECT_NE(breaches_of("fill_sleeping").find("cudaMemset uses [0x"), std::string::npos);
  EXPECT_EQ(breaches_of("copy_beside_sleeping"), "");
}

TEST_F(SimulatorProcesses, AStrictRunSaysNothingOfUsesInOrder) {
  for (const char* name : {"fill_behind_an_event", "fill_when_the_host_has_waited", "fill_in_implicit_order",
                           "read_twice", "free_in_order", "unmap_later"}) {
    EXPECT_EQ(breaches_of(name), "") << name;
  }
}

TEST_F(SimulatorProcesses, AStrictRunTellsAtTheEndWhatWasNotGivenBack) {
  const std::string output = breaches_of("leave_things");
  for (const char* line : {"3.00 MiB in 3 allocations of cudaMalloc\n", "3.00 MiB in 1 allocation of cudaMallocAsync\n",
                           "1024 bytes in 1 allocation of cudaHostAlloc\n", "1 stream of cudaStreamCreate\n"}) {
    EXPECT_NE(output.find(std::string("cachalot simulator: not given back: ") + line), std::string::npos) << output;
  }
  EXPECT_EQ(std::count(output.begin(), output.end(), '\n'), 4) << output;
}

TEST_F(SimulatorProcesses, TheLogHasALineForEachCall) {
  const auto path = folder_ / "log";
  probe(settings({{"latency", "none"}, {"faults", "malloc:2"}, {"log", path.string()}}), "allocate");
  EXPECT_EQ(read_file(path),
            "0 0 malloc 0x10000000000 1048576 ok\n0 0 malloc 0x0 1048576 failed\n"
            "0 0 malloc 0x10000200000 1048576 ok\n0 0 free 0x10000000000 0 ok\n");
}

TEST_F(SimulatorProcesses, AForkedChildWritesNoneOfTheLogAgain) {
  const auto path = folder_ / "log";
  EXPECT_EQ(probe(settings({{"latency", "none"}, {"log", path.string()}}), "fork"), "cudaSuccess\n");
  EXPECT_EQ(read_file(path), "0 0 malloc 0x10000000000 1048576 ok\n");
}

TEST_F(SimulatorProcesses, TheReportHasPeakAndFirstFailure) {
  const auto path = folder_ / "report";
  probe(settings({{"memory", "4MiB"}, {"devices", "1"}, {"report", path.string()}}), "allocate");
  const auto report = nlohmann::json::parse(read_file(path)).at("devices").at(0);
  EXPECT_EQ(report.at("total_bytes"), 4 * kMib);
  EXPECT_EQ(report.at("peak_used_bytes"), 4 * kMib);
  EXPECT_EQ(report.at("peak").at("allocation"), 1);
  EXPECT_EQ(report.at("used_bytes"), 2 * kMib);
  EXPECT_EQ(report.at("allocations"), 3);
  EXPECT_EQ(report.at("failed_allocations"), 1);
  EXPECT_EQ(report.at("first_failure").at("call"), "cudaMalloc");
  EXPECT_EQ(report.at("first_failure").at("bytes"), kMib);
  EXPECT_EQ(report.at("first_failure").at("free_bytes"), 0);
  EXPECT_EQ(report.at("first_failure").at("allocation"), 2);
  EXPECT_EQ(report.at("calls").at("malloc"), 3);
  EXPECT_EQ(report.at("calls").at("free"), 1);
}

TEST_F(SimulatorProcesses, TheReportIsWrittenBeforeASignalEndsTheProcess) {
  for (const auto& [what, code] : {std::pair{"terminate", "143\n"}, std::pair{"interrupt", "130\n"}}) {
    const auto path = folder_ / what;
    const std::string variable = settings({{"report", path.string()}});
    EXPECT_TRUE(probe(variable, fmt::format("{}; echo $?", what)).ends_with(code)) << what;
    const auto report = nlohmann::json::parse(read_file(path)).at("devices").at(0);
    EXPECT_EQ(report.at("used_bytes"), 2 * kMib);
  }
}

TEST_F(SimulatorProcesses, TheReportIsWrittenBeforeExitWithoutDestructors) {
  const auto path = folder_ / "report";
  EXPECT_TRUE(probe(settings({{"report", path.string()}}), "end_at_once; echo $?").ends_with("6\n"));
  const auto report = nlohmann::json::parse(read_file(path));
  EXPECT_EQ(report.at("devices").at(0).at("used_bytes"), 4 * kMib);
  EXPECT_EQ(report.at("exit_status"), 6);
}

TEST_F(SimulatorProcesses, TheReportSaysThatTheCpuAccessedDeviceMemory) {
  const auto report_of = [&](const std::string& what) {
    const auto path = folder_ / what;
    const std::string variable = settings({{"devices", "1"}, {"report", path.string()}});
    EXPECT_TRUE(probe(variable, what + "; echo $?").ends_with("139\n")) << "SIGSEGV ends it";
    return nlohmann::json::parse(read_file(path));
  };
  const auto report = report_of("read_device_memory");
  EXPECT_EQ(report.at("host_access"), (nlohmann::json{{"address", 0x10000000100}, {"device", 0}}));
  EXPECT_EQ(report.at("devices").at(0).at("used_bytes"), 2 * kMib);
  EXPECT_TRUE(report_of("read_nothing").at("host_access").is_null()) << "address 0 is of no device";
}

TEST_F(SimulatorProcesses, ASignalThatTheProgramIgnoresDoesNotEndIt) {
  const auto path = folder_ / "report";
  const std::string variable = "trap '' TERM; " + settings({{"report", path.string()}});
  EXPECT_EQ(probe(variable, "terminate"), "cudaSuccess\n");
  EXPECT_EQ(nlohmann::json::parse(read_file(path)).at("devices").at(0).at("used_bytes"), 0);
}

TEST_F(SimulatorProcesses, WhatIsNotSimulatedSaysSoOnceAndFails) {
  EXPECT_EQ(probe("", "array"),
            "cachalot simulator: cudaMallocArray is not simulated\ncudaErrorNotSupported cudaErrorNotSupported\n");
}

TEST_F(SimulatorProcesses, SharedMemoryHasOneContentInBothProcesses) {
  void* pointer = nullptr;
  ASSERT_CUDA(cudaMalloc(&pointer, kMib));
  int value = 41;
  ASSERT_CUDA(cudaMemcpy(pointer, &value, sizeof(value), cudaMemcpyHostToDevice));
  cudaIpcMemHandle_t handle{};
  ASSERT_CUDA(cudaIpcGetMemHandle(&handle, pointer));
  void* own = nullptr;
  EXPECT_EQ(cudaIpcOpenMemHandle(&own, handle, 1), cudaErrorDeviceUninitialized) << "not in the process that made it";
  cudaGetLastError();
  std::string digits;
  for (const char byte : handle.reserved) digits += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  EXPECT_EQ(probe("", "import " + digits), "cudaSuccess 41, descriptors left open: 0\n");
  ASSERT_CUDA(cudaMemcpy(&value, pointer, sizeof(value), cudaMemcpyDeviceToHost));
  EXPECT_EQ(value, 42);
  ASSERT_CUDA(cudaFree(pointer));
}

TEST_F(SimulatorProcesses, ProcessesThatShareADeviceMissWhatTheOthersTake) {
  const std::string devices = (folder_ / "devices").string();
  const std::string probe_take = std::string(CACHALOT_PROBE) + " take ";
  EXPECT_EQ(probe("", fmt::format("take 40 '{}40'", probe_take)), "cudaSuccess 24\ncudaSuccess 24\n")
      << "without a file each has the device to itself";
  EXPECT_EQ(probe(settings({{"shared", devices}}), fmt::format("take 40 '{0}40; {0}24; {0}8'", probe_take)),
            "cudaSuccess 24\ncudaErrorMemoryAllocation 24\ncudaSuccess 0\ncudaSuccess 16\n");
  EXPECT_EQ(probe(settings({{"shared", devices}, {"devices", "2"}}),
                  fmt::format("take 40 'CUDA_VISIBLE_DEVICES=1 {0}40; CUDA_VISIBLE_DEVICES=0 {0}40'", probe_take)),
            "cudaSuccess 24\ncudaSuccess 24\ncudaErrorMemoryAllocation 24\n")
      << "a device is the same whatever its number is in a process";
}

TEST_F(SimulatorProcesses, AFileOfAnotherProgramIsNotShared) {
  const std::string notes = (folder_ / "notes").string();
  for (const std::string& content :
       {std::string("my notes\n"), std::string(sizeof(simulator::SharedMemoryFile), 'x')}) {
    std::ofstream(notes) << content;
    EXPECT_EQ(probe(settings({{"shared", notes}}), "count")
                  .find(fmt::format(
                      "cachalot simulator: CACHALOT_SIM: option shared: '{}' cannot be used: it is neither empty nor",
                      notes)),
              0U);
    std::ifstream file(notes);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), content);
  }
}

TEST_F(SimulatorProcesses, TheMemoryOfAKilledProcessIsFree) {
  const std::string probe_take = std::string(CACHALOT_PROBE) + " take ";
  EXPECT_EQ(probe(settings({{"shared", (folder_ / "devices").string()}}),
                  fmt::format("take 10 '{0}40 kill; {0}54'", probe_take)),
            "cudaSuccess 54\ncudaSuccess 14\nKilled\ncudaSuccess 0\n");
}

TEST_F(SimulatorProcesses, AForkedChildCannotUseCudaAndTheParentCan) {
  cudaStream_t stream = nullptr;
  unsigned long long id = 0;
  ASSERT_CUDA(cudaStreamCreate(&stream));
  ASSERT_CUDA(cudaStreamGetId(stream, &id));
  const pid_t child = fork();
  if (child == 0) {
    void* pointer = nullptr;
    int device = 0;
    bool refused = true;
    for (const cudaError_t error : {cudaMalloc(&pointer, kMib), cudaSetDevice(0), cudaGetDevice(&device),
                                    cudaStreamGetId(stream, &id), cudaGetLastError()})
      refused = refused && error == cudaErrorInitializationError;
    _exit(refused ? 0 : 1);
  }
  ASSERT_CUDA(cudaStreamDestroy(stream));
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  void* pointer = nullptr;
  EXPECT_CUDA(cudaMalloc(&pointer, kMib));
  EXPECT_CUDA(cudaFree(pointer));
}

}  // namespace
}  // namespace cachalot
