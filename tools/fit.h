// Finds the largest values of a program's parameters for which it fits, for each GPU and allocator policy.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/card_table.h"
#include "tools/fit_search.h"
#include "tools/simulation.h"

namespace cachalot::tools {

// Reads "batch=1..256" or "batch=1,2,4,8". Throws InvalidArgument.
Vary parse_vary(std::string_view text);

// Returns the program's words with the values in their places.
std::vector<std::string> with_values(const std::vector<std::string>& program, const std::vector<Vary>& vary,
                                     const std::vector<std::int64_t>& values);

struct FitOptions {
  SimulationOptions run;   // of each run: the program, and all but its GPU and memory
  std::vector<Vary> vary;  // for each combination of the others' values, the largest value of the last is found
  std::vector<Card> cards;
  int jobs = 1;                               // runs at the same time
  std::function<void(double done)> progress;  // 0 to 1
};

struct FitRow {
  Card card;
  std::vector<std::int64_t> fixed;                                // the values of all parameters but the last
  std::array<std::optional<std::int64_t>, kPolicyCount> largest;  // of the last; nullopt: none fits
};

struct FitReport {
  std::vector<Vary> vary;
  std::size_t runs = 0;
  bool is_exact = true;  // in each run the replay held what the run held
  // The smallest card first, and of a card in the order of the fixed values. Where some of these are ranges, a card has only
  // rows that are corners with one policy: the largest value is smaller with larger ones of a range.
  std::vector<FitRow> rows;
  std::vector<Card> left_out;  // PyTorch has no kernels for these
};

// Throws InvalidArgument, also where a run did not end well: then nothing is known of its values.
FitReport fit(const FitOptions& options);

}  // namespace cachalot::tools
