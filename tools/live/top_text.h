// A sample as tables for people.
//
// Texts of other processes (commands, tags, names of devices) are shown in ASCII, with everything else escaped: none of them
// reaches the terminal as a control sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tools/live/sample.h"
#include "tools/text_layout.h"

namespace cachalot::tools::live {

struct TopView {
  enum class Order : std::uint8_t { reserved, allocated, rate, pid };
  bool shows_gpus = true;
  bool shows_pools = true;
  bool shows_tags = true;
  Order order = Order::reserved;
};

// Returns the next order, and its name for the head.
TopView::Order next_of(TopView::Order order);
std::string name_of(TopView::Order order);

// Returns lines, each ended by a newline. `interval_s` is the time between two samples, for the head. `notes` are lines for the
// end, such as pages that are not shown.
std::string to_text(const Sample& sample, const TopView& view, double interval_s, const std::vector<std::string>& notes,
                    const Style& style);

// Returns the first `rows` lines, each cut to `columns`; escape sequences of styles take no column.
std::string cut_to_screen(const std::string& text, std::size_t rows, std::size_t columns);

}  // namespace cachalot::tools::live
