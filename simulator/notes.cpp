#include "simulator/notes.h"

#include <set>
#include <string>

#include "base/format.h"
#include "base/mutex.h"

namespace cachalot::simulator {

void note_not_simulated(std::string_view name) {
  static auto& mutex = *new Mutex;
  static auto& noted = *new std::set<std::string, std::less<>>;
  const Lock lock(mutex);
  if (!noted.emplace(name).second) return;
  print_error("cachalot simulator: {} is not simulated\n", name);
}

}  // namespace cachalot::simulator
