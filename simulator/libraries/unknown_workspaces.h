// Workspaces that nobody knows: a program asks cuSOLVER, cuSPARSE or cuFFT how much it must allocate, and is told 0.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "cachalot/version.h"

CACHALOT_BEGIN
class JsonWriter;
CACHALOT_END

namespace cachalot::simulator {

// The libraries, by how the names of their functions begin; cuDNN is not among them, since it plans by itself.
struct AskedLibrary {
  std::string_view prefix;
  std::string_view name;
};
inline constexpr std::array kAskedLibraries{AskedLibrary{"cusolver", "cuSOLVER"},
                                            AskedLibrary{"cusparseLt", "cuSPARSELt"},
                                            AskedLibrary{"cusparse", "cuSPARSE"}, AskedLibrary{"cufft", "cuFFT"}};

// Returns the place among kAskedLibraries of a function's library; their number if it is another one.
constexpr std::size_t library_of(std::string_view function) {
  std::size_t place = 0;
  while (place < kAskedLibraries.size() && !function.starts_with(kAskedLibraries[place].prefix)) ++place;
  return place;
}

// Returns whether the function tells how large a workspace on the device must be, or makes a plan that has one.
constexpr bool asks_for_workspace(std::string_view function) {
  constexpr std::string_view kParts[] = {"_bufferSize", "GetWorkspace", "workEstimation", "SpGEMM_compute"};
  constexpr std::string_view kPartsOfFft[] = {"cufftMakePlan", "cufftXtMakePlan", "cufftPlan", "GetSize", "Estimate"};
  if (library_of(function) == kAskedLibraries.size() || function.ends_with("Host")) return false;
  for (const std::string_view part : kParts) {
    if (function.find(part) != std::string_view::npos) return true;
  }
  for (const std::string_view part : kPartsOfFft) {
    if (function.starts_with("cufft") && function.find(part) != std::string_view::npos) return true;
  }
  return false;
}

// The program has called such a function. Thread-safe.
void note_unknown_workspace(std::string_view function);
// An array of names of libraries.
void write_unknown_workspaces(JsonWriter& json);

}  // namespace cachalot::simulator
