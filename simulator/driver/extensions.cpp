#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cachalot/simulator.h"
#include "simulator/base/end_of_process.h"
#include "simulator/base/thread_state.h"
#include "simulator/device/simulation_settings.h"
#include "simulator/models/config.h"
#include "simulator/state/calls.h"
#include "simulator/state/simulated_process.h"

using namespace cachalot;
using namespace cachalot::simulator;

namespace {

// -1 where there is no process or `ask` fails.
template <typename Ask>
std::int64_t figure(Ask&& ask) {
  std::int64_t value = -1;
  guarded([&](Process& process) { value = static_cast<std::int64_t>(ask(process)); });
  return value;
}

// The code that computes an operation's values calls this for each of its tensors: the kernel would use their memory.
constexpr auto kKernel = "a kernel";

void make_unknown(Process& process, const void* start, std::size_t bytes) {
  process.virtual_memory().sleeping().require_awake(kKernel, start, bytes);
  process.copies().make_unknown(start, bytes);
  process.captures().note_unknown(start, bytes);
}

// The stream of a handle that names none by itself is the device's.
StreamState& stream_of(Process& process, CUstream_st* handle, int device) {
  if (Streams::is_own_name(handle)) return process.streams().at("cachalot_sim_blocks_used", handle);
  return process.devices().at(device).legacy_stream;
}

}  // namespace

int cachalot_sim_advance(std::int64_t nanoseconds) {
  return guarded([&](Process& process) {
    if (nanoseconds < 0) return cudaErrorInvalidValue;
    process.devices().advance(nanoseconds);
    return cudaSuccess;
  });
}

int cachalot_sim_launch(CUstream_st* stream, std::int64_t nanoseconds) {
  return guarded([&](Process& process) {
    if (nanoseconds < 0) return cudaErrorInvalidValue;
    process.launches().launch_for(process.streams().at("cachalot_sim_launch", stream), cudaGraphNodeTypeKernel,
                                  nanoseconds);
    return cudaSuccess;
  });
}

std::int64_t cachalot_sim_clock_ns() {
  return figure([](Process& process) { return process.devices().clock_ns(); });
}

std::int64_t cachalot_sim_used_bytes(int device) {
  return figure([&](Process& process) { return process.devices().at(device).simulated->used_bytes(); });
}

std::int64_t cachalot_sim_peak_used_bytes(int device) {
  return figure([&](Process& process) { return process.devices().at(device).simulated->peak_used_bytes(); });
}

std::int64_t cachalot_sim_calls(int device, const char* call) {
  return figure([&](Process& process) { return process.devices().at(device).simulated->count(parse_call(call)); });
}

std::int64_t cachalot_sim_contexts(int device) {
  return figure([&](Process& process) { return process.devices().at(device).contexts; });
}

std::int64_t cachalot_sim_breaches() {
  return figure([](Process& process) { return process.watch().breaches(); });
}

const char* cachalot_sim_setting(const char* key) {
  thread_local std::string found;
  try {
    const SimulationSettings settings = SimulationSettings::of_environment();
    const std::string* const value = settings.find(key);
    return value == nullptr ? nullptr : (found = *value).c_str();
  } catch (const InvalidArgument&) {  // the first call of CUDA reports it
    return nullptr;
  }
}

int cachalot_sim_is_used() { return Process::exists() ? 1 : 0; }

void cachalot_sim_write_report() { Process::write_report(/*is_final=*/true); }

void cachalot_sim_write_more(void (*write)()) { write_more_before_sudden_end(write); }

int cachalot_sim_set_faults(int device, const char* faults) {
  return guarded([&](Process& process) {
    if (faults == nullptr) return cudaErrorInvalidValue;
    std::vector<Fault> plan;
    try {
      if (*faults != '\0') plan = parse_faults(faults);
    } catch (const InvalidArgument&) {
      return cudaErrorInvalidValue;
    }
    process.devices().at(device).simulated->set_faults(plan);
    return cudaSuccess;
  });
}

std::int64_t cachalot_sim_faults_injected(int device) {
  return figure([&](Process& process) { return process.devices().at(device).simulated->faults_injected(); });
}

int cachalot_sim_put(void* to, const void* from, std::uint64_t bytes, int guessed) {
  return guarded([&](Process& process) {
    process.copies().put(to, from, bytes, guessed != 0 ? KnownContent::Kind::guessed : KnownContent::Kind::known);
  });
}

int cachalot_sim_get(void* to, const void* from, std::uint64_t bytes) {
  return static_cast<int>(figure([&](Process& process) {
    process.virtual_memory().sleeping().require_awake(kKernel, from, bytes);
    return process.copies().get(to, from, bytes);
  }));
}

int cachalot_sim_is_pinned(const void* start, std::uint64_t bytes) {
  return figure([&](Process& process) { return process.host_memory().is_pinned(start, bytes) ? 1 : 0; }) == 1 ? 1 : 0;
}

int cachalot_sim_put_kinds(void* to, const void* from, std::uint64_t bytes, const unsigned char* kinds) {
  return guarded([&](Process& process) {
    if (std::any_of(kinds, kinds + bytes, [](unsigned char kind) { return kind > 2; })) return cudaErrorInvalidValue;
    process.copies().put(to, from, bytes, reinterpret_cast<const KnownContent::Kind*>(kinds));
    return cudaSuccess;
  });
}

int cachalot_sim_get_kinds(unsigned char* kinds, const void* from, std::uint64_t bytes) {
  return guarded(
      [&](Process& process) { process.copies().get_kinds(reinterpret_cast<KnownContent::Kind*>(kinds), from, bytes); });
}

int cachalot_sim_kinds_in(const void* start, std::uint64_t bytes) {
  return static_cast<int>(figure([&](Process& process) {
    process.virtual_memory().sleeping().require_awake(kKernel, start, bytes);
    return process.copies().kinds_in(start, bytes);
  }));
}

int cachalot_sim_guess(const void* start, std::uint64_t bytes, int byte) {
  return guarded([&](Process& process) { process.copies().guess(start, bytes, static_cast<unsigned char>(byte)); });
}

int cachalot_sim_make_unknown(const void* start, std::uint64_t bytes) {
  return guarded([&](Process& process) { make_unknown(process, start, bytes); });
}

int cachalot_sim_make_all_unknown(const std::uint64_t* ranges, std::uint64_t count) {
  return guarded([&](Process& process) {
    for (std::uint64_t i = 0; i < count; ++i) {
      make_unknown(process, reinterpret_cast<const void*>(ranges[i]), ranges[count + i]);
    }
  });
}

void cachalot_sim_answer(std::int64_t count) {
  if (count >= 0)
    this_thread().answer.set(count);
  else
    this_thread().answer.clear();
}

int cachalot_sim_block_allocated(int device, std::uint64_t start, std::uint64_t bytes) {
  return guarded([&](Process& process) {
    if (process.config().finds_races) process.uses().races().allocated(device, {start, bytes});
  });
}

int cachalot_sim_block_freed(std::uint64_t start) {
  return guarded([&](Process& process) { process.uses().races().freed(start); });
}

std::int64_t cachalot_sim_blocks_used(const std::uint64_t* ranges, std::uint64_t count, CUstream_st* stream,
                                      std::uint32_t place) {
  return figure([&](Process& process) -> std::int64_t {
    ReuseRaces& races = process.uses().races();
    for (std::uint64_t i = 0; i < count; ++i) {
      const AddressRange range{ranges[i], ranges[count + i]};
      const std::optional<int> device = races.device_of(range);
      if (device) races.used(range, stream_of(process, stream, *device), stream, place);
    }
    return static_cast<std::int64_t>(races.found());
  });
}

std::int64_t cachalot_sim_blocks_noted() {
  return figure([](Process& process) { return process.uses().races().blocks(); });
}

int cachalot_sim_take_race(cachalot_sim_race* race) {
  std::optional<cachalot_sim_race> taken;
  guarded([&](Process& process) { taken = process.uses().races().take(); });
  if (taken) *race = *taken;
  return taken ? 1 : 0;
}
