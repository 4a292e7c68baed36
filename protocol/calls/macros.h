// The few macros that turn `(stream, flags)` and a function's type into a parameter list. Everything else is templates.
#pragma once

#include "protocol/calls/signature.h"

#define GP_STRIP(...) __VA_ARGS__
#define GP_CAT(a, b) GP_CAT_(a, b)
#define GP_CAT_(a, b) a##b

#define GP_COUNT(...) GP_COUNT_(__VA_ARGS__ __VA_OPT__(, ) 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define GP_COUNT_(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, count, ...) count

// GP_TYPED(symbol, (a, b)) is `first_type a, second_type b`.
#define GP_TYPED(symbol, params) GP_TYPED_COUNTED(GP_COUNT params, symbol, GP_STRIP params)
#define GP_TYPED_COUNTED(count, ...) GP_CAT(GP_TYPED_, count)(__VA_ARGS__)
#define GP_ARG(symbol, index, name) ::gpupool::calls::Argument<decltype(&::symbol), index> name
#define GP_TYPED_0(s, ...)
#define GP_TYPED_1(s, a) GP_ARG(s, 0, a)
#define GP_TYPED_2(s, a, b) GP_TYPED_1(s, a), GP_ARG(s, 1, b)
#define GP_TYPED_3(s, a, b, c) GP_TYPED_2(s, a, b), GP_ARG(s, 2, c)
#define GP_TYPED_4(s, a, b, c, d) GP_TYPED_3(s, a, b, c), GP_ARG(s, 3, d)
#define GP_TYPED_5(s, a, b, c, d, e) GP_TYPED_4(s, a, b, c, d), GP_ARG(s, 4, e)
#define GP_TYPED_6(s, a, b, c, d, e, f) GP_TYPED_5(s, a, b, c, d, e), GP_ARG(s, 5, f)
#define GP_TYPED_7(s, a, b, c, d, e, f, g) GP_TYPED_6(s, a, b, c, d, e, f), GP_ARG(s, 6, g)
#define GP_TYPED_8(s, a, b, c, d, e, f, g, h) GP_TYPED_7(s, a, b, c, d, e, f, g), GP_ARG(s, 7, h)
#define GP_TYPED_9(s, a, b, c, d, e, f, g, h, i) GP_TYPED_8(s, a, b, c, d, e, f, g, h), GP_ARG(s, 8, i)
#define GP_TYPED_10(s, a, b, c, d, e, f, g, h, i, j) GP_TYPED_9(s, a, b, c, d, e, f, g, h, i), GP_ARG(s, 9, j)
#define GP_TYPED_11(s, a, b, c, d, e, f, g, h, i, j, k) GP_TYPED_10(s, a, b, c, d, e, f, g, h, i, j), GP_ARG(s, 10, k)
#define GP_TYPED_12(s, a, b, c, d, e, f, g, h, i, j, k, l) \
    GP_TYPED_11(s, a, b, c, d, e, f, g, h, i, j, k), GP_ARG(s, 11, l)
#define GP_TYPED_13(s, a, b, c, d, e, f, g, h, i, j, k, l, m) \
    GP_TYPED_12(s, a, b, c, d, e, f, g, h, i, j, k, l), GP_ARG(s, 12, m)
#define GP_TYPED_14(s, a, b, c, d, e, f, g, h, i, j, k, l, m, n) \
    GP_TYPED_13(s, a, b, c, d, e, f, g, h, i, j, k, l, m), GP_ARG(s, 13, n)
#define GP_TYPED_15(s, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o) \
    GP_TYPED_14(s, a, b, c, d, e, f, g, h, i, j, k, l, m, n), GP_ARG(s, 14, o)
#define GP_TYPED_16(s, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p) \
    GP_TYPED_15(s, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o), GP_ARG(s, 15, p)
