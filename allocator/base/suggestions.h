// Suggestions for misspelt words: "did you mean 'simulate'?".
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "cachalot/version.h"

CACHALOT_BEGIN

// Returns the least number of letters to insert, drop or replace, and of neighbours to swap, that turns one word into the
// other. Upper and lower case are alike, and so are '-' and '_'.
std::size_t edit_distance(std::string_view one, std::string_view other);

// Returns the known word that `word` probably means: the one at the least distance, if that is at most a third of the
// letters, else the shortest that begins with `word`. Returns "" where no known word is near. Of equals the first wins.
std::string_view nearest_word(std::string_view word, std::span<const std::string_view> known);

// Returns "did you mean 'simulate'?", or "" where no known word is near.
std::string did_you_mean(std::string_view word, std::span<const std::string_view> known);

CACHALOT_END
