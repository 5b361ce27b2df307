// The traces of what ran in a simulation, and the tables of cards for them.
#pragma once

#include <filesystem>
#include <vector>

#include "simulator/context_costs.h"
#include "tools/card_table.h"
#include "tools/simulation.h"

namespace cachalot::tools {

// Returns every GPU that the simulator knows, with what a program's context takes there; `of_others` is the spread of other
// estimates than the context, which are the same on all GPUs.
std::vector<Card> known_cards(const simulator::ContextCharge& context, const simulator::Spread& of_others = {});

// Returns the traces that a process wrote into the folder of reports, of each device on which it did not run out of memory.
std::vector<RecordedTrace> recorded_traces(const ProcessReport& report, const std::filesystem::path& folder);

// Returns the table for each trace.
std::vector<CardTable> card_tables(std::vector<RecordedTrace> traces);

}  // namespace cachalot::tools
