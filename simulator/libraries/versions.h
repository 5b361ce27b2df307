// The versions that the do-nothing libraries claim: those that come with CUDA 13.0.
#pragma once

namespace cachalot::simulator {

inline constexpr int kMathLibraryVersion = 130100;
inline constexpr int kRuntimeVersion = 13000;
inline constexpr int kCudnnVersion = 91900;

}  // namespace cachalot::simulator
