#include "cachalot/allocator_settings.h"

#include <cmath>
#include <limits>
#include <mutex>

#include "base/check.h"
#include "groups/allocator_state.h"
#include "policy/option_grammar.h"

CACHALOT_BEGIN

namespace {

// Holds options_mutex.
void apply(AllocatorState& state, const Options& options, bool sets_fraction, bool sets_limit) {
  const HeapKind heap = selected_heap(state.options);
  CACHALOT_REQUIRE(selected_heap(options) == heap,
                   "heap:{} cannot be set at run time: the heap is '{}' since the allocator was made",
                   to_string(selected_heap(options)), to_string(heap));
  const auto require_same = [](const char* what, bool wanted, bool is) {
    CACHALOT_REQUIRE(wanted == is, "{}:{} cannot be set at run time: the {} is {} since the allocator was made", what,
                     wanted ? "True" : "False", what, is ? "on" : "off");
  };
  require_same("debug", options.debug, state.options.debug);
  require_same("guard", has_guard(options), has_guard(state.options));
  if (sets_fraction) Ledger::require_fraction(options.per_process_memory_fraction);
  state.options = options;
  for (const auto& allocator : state.devices()) {
    allocator->apply(options);
    if (sets_fraction) allocator->set_memory_fraction(options.per_process_memory_fraction, Limits::Setter::option);
    if (sets_limit) allocator->set_limit(options.limit, Limits::Setter::option);
  }
}

}  // namespace

void AllocatorSettings::configure(std::string_view text) {
  state_.require_own_process();
  const std::lock_guard<std::mutex> lock(state_.options_mutex);
  // The fraction is no number until the text names one: set_memory_fraction may have changed a device's since.
  Options base = state_.options;
  base.per_process_memory_fraction = std::numeric_limits<double>::quiet_NaN();
  Options options = parse_options(text, base);
  const bool names_fraction = !std::isnan(options.per_process_memory_fraction);
  if (!names_fraction) options.per_process_memory_fraction = state_.options.per_process_memory_fraction;
  apply(state_, options, names_fraction, names_option(text, "limit"));
}

void AllocatorSettings::configure(const Options& options) {
  state_.require_own_process();
  const std::lock_guard<std::mutex> lock(state_.options_mutex);
  apply(state_, options, options.per_process_memory_fraction != state_.options.per_process_memory_fraction,
        options.limit != state_.options.limit);
}

Options AllocatorSettings::options() const { return state_.current_options(); }

void AllocatorSettings::set_memory_fraction(double fraction, int device) {
  state_.at(device).set_memory_fraction(fraction);
}
double AllocatorSettings::memory_fraction(int device) const { return state_.at(device).memory_fraction(); }

void AllocatorSettings::set_caching_enabled(bool enabled) {
  state_.require_own_process();
  state_.caching_enabled.store(enabled);
  for (const auto& allocator : state_.devices()) allocator->uncached.set_caching_enabled(enabled);
}

bool AllocatorSettings::caching_enabled() const { return state_.caching_enabled.load(); }

CACHALOT_END
