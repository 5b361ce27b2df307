#include "simulator/notes.h"

#include <set>
#include <string>

#include "base/format.h"
#include "base/locks.h"

namespace cachalot::simulator {

void note_once(std::string_view text) {
  static auto& mutex = *new Mutex;
  static auto& noted = *new std::set<std::string, std::less<>>;
  const Lock lock(mutex);
  if (!noted.emplace(text).second) return;
  print_error("cachalot simulator: {}\n", text);
}

void note_not_simulated(std::string_view name) { note_once(formatted("{} is not simulated", name)); }

}  // namespace cachalot::simulator
