// The bodies of {fmt}, compiled once per build instead of in every file that formats something: header-only, each such
// file took 5 seconds longer to compile, 14 under sanitizers. The distributions' own library is shared, which neither
// the client library nor a bundle may depend on.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {
// What the headers declare and leave to the library.
template FMT_API auto dragonbox::to_decimal(float x) noexcept -> dragonbox::decimal_fp<float>;
template FMT_API auto dragonbox::to_decimal(double x) noexcept -> dragonbox::decimal_fp<double>;
template FMT_API auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template FMT_API auto decimal_point_impl<char>(locale_ref) -> char;
}  // namespace detail
FMT_END_NAMESPACE
