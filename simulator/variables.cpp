#include "simulator/variables.h"

#include <cstdlib>
#include <unordered_map>

#include "base/mutex.h"

namespace cachalot::simulator {
namespace {

struct VariableTable {
  Mutex mutex;
  std::unordered_map<const void*, Variable> variables CACHALOT_GUARDED_BY(mutex);
};

// Never destroyed: static destructors of the program may still copy.
VariableTable& all_variables() {
  static auto& instance = *new VariableTable;
  return instance;
}

}  // namespace

const Variable& register_variable(const void* symbol, std::size_t bytes) {
  const Lock lock(all_variables().mutex);
  Variable& variable = all_variables().variables[symbol];
  if (variable.bytes < bytes) variable = {static_cast<char*>(std::calloc(1, bytes)), bytes};
  return variable;
}

const Variable* find_variable(const void* symbol) {
  const Lock lock(all_variables().mutex);
  const auto at = all_variables().variables.find(symbol);
  return at == all_variables().variables.end() ? nullptr : &at->second;
}

}  // namespace cachalot::simulator
