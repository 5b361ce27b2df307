// What the simulator says on stderr, each line once. Thread-safe.
#pragma once

#include <string_view>

namespace cachalot::simulator {

// "cachalot simulator: TEXT"
void note_once(std::string_view text);

// "cachalot simulator: NAME is not simulated"
void note_not_simulated(std::string_view name);

}  // namespace cachalot::simulator
