// The options that say for which GPUs a command answers.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "simulator/context_costs.h"
#include "tools/card_table.h"

namespace cachalot::tools {

struct CardOptions {
  std::vector<std::string> gpus;
  std::vector<std::string> memory;

  bool are_given() const { return !gpus.empty() || !memory.empty(); }
};

// Declares --gpu and --memory, which may be given several times. `options` must live as long as `app`.
void declare_cards(CLI::App& app, CardOptions& options);

// Returns the cards that the options name, each once; without options all that are known. `context` is what a program's
// context takes. Throws InvalidArgument.
std::vector<Card> cards_of(const CardOptions& options, const simulator::ContextCharge& context,
                           const simulator::Spread& of_others = {});

}  // namespace cachalot::tools
