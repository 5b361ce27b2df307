#include "simulator/variables.h"

#include <cstdlib>
#include <unordered_map>

#include "base/mutex.h"

namespace cachalot::simulator {
namespace {

struct Table {
  Mutex mutex;
  std::unordered_map<const void*, Variable> variables CACHALOT_GUARDED_BY(mutex);
};

// Never destroyed: static destructors of the program may still copy.
Table& table() {
  static auto& instance = *new Table;
  return instance;
}

}  // namespace

const Variable& register_variable(const void* symbol, std::size_t bytes) {
  const Lock lock(table().mutex);
  Variable& variable = table().variables[symbol];
  if (variable.bytes < bytes) variable = {static_cast<char*>(std::calloc(1, bytes)), bytes};
  return variable;
}

const Variable* find_variable(const void* symbol) {
  const Lock lock(table().mutex);
  const auto at = table().variables.find(symbol);
  return at == table().variables.end() ? nullptr : &at->second;
}

}  // namespace cachalot::simulator
