// Functions of torch's that cachalot calls while Python may raise an exception.
#pragma once

#include <functional>
#include <utility>

#include "pytorch/python_api.h"

namespace cachalot {

// The same function, which keeps the exception that its thread raises in Python. An empty one stays empty.
template <typename Result, typename... Args>
std::function<Result(Args...)> keeping_exceptions(std::function<Result(Args...)> function, bool may_take_gil = false) {
  if (!function) return nullptr;
  return [function = std::move(function), may_take_gil](Args... args) {
    const KeptException kept(may_take_gil);
    return function(std::forward<Args>(args)...);
  };
}

}  // namespace cachalot
