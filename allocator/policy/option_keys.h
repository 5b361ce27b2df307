// The keys that options have, and the rule of each: PyTorch's rules in PyTorch's words, and ours.
#pragma once

#include <span>
#include <string_view>

#include "cachalot/options.h"
#include "policy/option_grammar.h"

CACHALOT_BEGIN

// An OptionKey says how a setting changes the options.
struct OptionKey {
  std::string_view name;
  std::string_view alias;  // PyTorch's name for it in ROCm builds
  void (*set)(const OptionSetting&, Options&);
  bool takes_list = false;

  bool is_named(std::string_view word) const { return word == name || (!alias.empty() && word == alias); }
};

// Returns all of them, in the order in which they are applied, wherever they stand in the text.
std::span<const OptionKey> option_keys();

CACHALOT_END
