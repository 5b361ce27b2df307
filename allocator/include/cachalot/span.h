/// @file
/// The view of contiguous elements that the public headers take and return.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <initializer_list>
#include <iterator>
#include <type_traits>
#include <utility>

#if __cplusplus >= 202002L
#include <span>
#endif

CACHALOT_BEGIN_API

/// A Span views `size()` contiguous elements of type T that live elsewhere, as std::span does.
///
/// The library is C++20 and serves programs of C++17; their std::span does not exist, so that no
/// public header may name it. A Span converts from std::span, and to it wherever it exists.
///
/// Requires: the elements outlive every use of the span.
/// Thread safety: a value; copies are independent. Nothing here throws or allocates.
template <typename T>
class Span {
  // A container is viewed if it has data() and size(), and its U* becomes T* by const alone.
  template <typename Container,
            typename U = std::remove_pointer_t<decltype(std::data(std::declval<Container&>()))>,
            typename = decltype(std::size(std::declval<Container&>()))>
  static std::is_convertible<U (*)[], T (*)[]> test(int);
  template <typename Container>
  static std::false_type test(...);
  template <typename Container>
  static constexpr bool kViews = decltype(test<Container>(0))::value;

 public:
  using element_type = T;                  ///< const T for a view that only reads
  using value_type = std::remove_cv_t<T>;  ///< the type of an element without const
  using iterator = T*;                     ///< a contiguous iterator

  /// Makes an empty span; data() is null.
  constexpr Span() noexcept = default;

  /// Views `size` elements, the first of them at `data`.
  constexpr Span(T* data, std::size_t size) noexcept : data_(data), size_(size) {}

  /// Views an array or a container that is const, temporary, or itself a view (std::span).
  /// A temporary lives until the full expression ends: pass it to a function, do not keep the span.
  template <typename Container, std::enable_if_t<kViews<const Container>, int> = 0>
  // NOLINTNEXTLINE(google-explicit-constructor): as std::span's
  constexpr Span(const Container& container)
      : data_(std::data(container)), size_(std::size(container)) {}

  /// Views an array or a container whose elements may be changed.
  template <typename Container,
            std::enable_if_t<kViews<Container> && !kViews<const Container>, int> = 0>
  // NOLINTNEXTLINE(google-explicit-constructor): as std::span's
  constexpr Span(Container& container) : data_(std::data(container)), size_(std::size(container)) {}

  /// Views a braced list, if T is const: `kernels->move_blocks(stream, {{from, to, bytes}, next})`.
  /// The list lives until the full expression ends: pass it to a function, do not keep the span.
  template <typename U = T, std::enable_if_t<std::is_const_v<U>, int> = 0>
  // NOLINTNEXTLINE(google-explicit-constructor): as std::span's
  constexpr Span(std::initializer_list<value_type> list) noexcept
      : Span(list.begin(), list.size()) {}

  /// Returns the address of the first element.
  constexpr T* data() const noexcept { return data_; }
  /// Returns the number of elements.
  constexpr std::size_t size() const noexcept { return size_; }
  /// Returns true if size() is 0.
  constexpr bool empty() const noexcept { return size_ == 0; }
  /// Returns an iterator to the first element.
  constexpr iterator begin() const noexcept { return data_; }
  /// Returns the iterator past the last element.
  constexpr iterator end() const noexcept { return data_ + size_; }
  /// Returns element `index`. Requires: `index` < size().
  constexpr T& operator[](std::size_t index) const { return data_[index]; }
  /// Returns the view of `count` elements from element `first` on. Requires: `first` + `count` <=
  /// size().
  constexpr Span subspan(std::size_t first, std::size_t count) const {
    return Span(data_ + first, count);
  }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

CACHALOT_END_API

#if __cplusplus >= 202002L
// Iterators of a Span outlive it, so that std::span may be made of a temporary one.
template <typename T>
// NOLINTNEXTLINE(readability-identifier-naming): the standard's name
inline constexpr bool std::ranges::enable_borrowed_range<cachalot::Span<T>> = true;
#endif
