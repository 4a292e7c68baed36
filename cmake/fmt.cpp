// {fmt}'s function bodies, compiled once per build. Header-only, each file that formats took 5 seconds longer to
// compile, 14 under sanitizers. The distributions' {fmt} is a shared library, on which neither the client library nor a
// bundle may depend.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {
// Functions that the headers declare and leave to the library.
template FMT_API auto dragonbox::to_decimal(float x) noexcept -> dragonbox::decimal_fp<float>;
template FMT_API auto dragonbox::to_decimal(double x) noexcept -> dragonbox::decimal_fp<double>;
template FMT_API auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template FMT_API auto decimal_point_impl<char>(locale_ref) -> char;
}  // namespace detail
FMT_END_NAMESPACE
