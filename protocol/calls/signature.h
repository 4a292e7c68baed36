// Types taken from a function's declaration.
#pragma once

#include <cstddef>
#include <type_traits>

namespace gpupool::calls {

namespace detail {
template <std::size_t Index, class First, class... Rest>
struct Nth : Nth<Index - 1, Rest...> {};
template <class First, class... Rest>
struct Nth<0, First, Rest...> {
    using type = First;
};

template <class Function>
struct Signature;
template <class Return>
struct Signature<Return (*)()> {
    static constexpr int arity = 0;
};
template <class Return, class First, class... Rest>
struct Signature<Return (*)(First, Rest...)> {
    static constexpr int arity = 1 + sizeof...(Rest);
    template <std::size_t Index>
    using argument = typename Nth<Index, First, Rest...>::type;
};
}  // namespace detail

template <class Function>
inline constexpr int arity_of = detail::Signature<Function>::arity;

template <class Function, std::size_t Index>
using Argument = typename detail::Signature<Function>::template argument<Index>;

}  // namespace gpupool::calls
