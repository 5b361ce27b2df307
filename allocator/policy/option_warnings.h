// Warnings of options that a user has set in vain.
#pragma once

#include "cachalot/options.h"

CACHALOT_BEGIN

// Prints options_without_effect on standard error, each sentence once per process; what `before` has already is not told.
// Thread-safe.
void warn_of_options_without_effect(const Options& options, const Options& before = {});

CACHALOT_END
