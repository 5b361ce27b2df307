// What the simulator says on stderr.
#pragma once

#include <string_view>

namespace cachalot::simulator {

// "cachalot simulator: NAME is not simulated", once a name. Thread-safe.
void note_not_simulated(std::string_view name);

}  // namespace cachalot::simulator
