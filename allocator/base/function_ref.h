#pragma once

#include <type_traits>
#include <utility>

#include "cachalot/version.h"

CACHALOT_BEGIN

// A FunctionRef refers to a function of its caller's, for the time of a call, and needs no memory as std::function may.
template <typename Signature>
class FunctionRef;
template <typename Result, typename... Arguments>
class FunctionRef<Result(Arguments...)> {
 public:
  template <typename Function>
  FunctionRef(Function&& function)  // NOLINT(google-explicit-constructor,bugprone-forwarding-reference-overload)
      : function_(const_cast<void*>(static_cast<const void*>(&function))),
        call_([](void* of, Arguments... arguments) -> Result {
          return (*static_cast<std::remove_reference_t<Function>*>(of))(std::forward<Arguments>(arguments)...);
        }) {}
  Result operator()(Arguments... arguments) const { return call_(function_, std::forward<Arguments>(arguments)...); }

 private:
  void* function_;
  Result (*call_)(void*, Arguments...);
};

CACHALOT_END
