#include "simulator/stream_state.h"

#include <algorithm>

namespace cachalot::simulator {

bool all_open(const Gates& gates) {
  return std::all_of(gates.begin(), gates.end(), [](const auto& gate) { return gate->open; });
}

void add_closed(Gates& gates, const Gates& more) {
  std::erase_if(gates, [](const auto& gate) { return gate->open; });
  for (const auto& gate : more) {
    if (!gate->open && std::find(gates.begin(), gates.end(), gate) == gates.end()) gates.push_back(gate);
  }
}

}  // namespace cachalot::simulator
