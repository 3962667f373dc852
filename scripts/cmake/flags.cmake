# Compiler and linker flags of our own code. Generated code gets all but MF_WARNINGS.
set(MF_WARNINGS -Wall -Wextra -Wconversion -Wshadow -Wstrict-prototypes -Wmissing-prototypes
  -Wno-format-zero-length # an empty cell of a table is an empty format (clang minds)
  -Werror)

# For C only: nvcc knows few of these.
function(mf_c_options)
  add_compile_options("$<$<COMPILE_LANGUAGE:C>:${ARGN}>")
endfunction()

# Exactness: no contraction into fused multiply-add, which would let two builds, or two paths of
# one sum, differ in the last bit. The other two change no value; they let sqrt and loops become
# vector code. Assertions stay on in every build: MF_ASSERT does not look at NDEBUG.
mf_c_options(-ffp-contract=off -fno-math-errno -fno-trapping-math)

if(MF_SANITIZE)
  # A quoted generator expression must not hold the comma of "address,undefined".
  string(REPLACE "," "$<COMMA>" sanitizers "${MF_SANITIZE}")
  mf_c_options(-fsanitize=${sanitizers} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${MF_SANITIZE})
  if(MF_SANITIZE MATCHES "undefined")
    mf_c_options(-fno-sanitize-recover=undefined)
  endif()
else()
  # -U first: Ubuntu's gcc defines it by itself.
  mf_c_options(-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2 -fstack-protector-strong)
  add_link_options(-Wl,-z,relro,-z,now)
  string(REPLACE "-O2" "-O3" CMAKE_C_FLAGS_RELWITHDEBINFO "${CMAKE_C_FLAGS_RELWITHDEBINFO}")
endif()

if(MF_FUZZ)
  if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "MF_FUZZ needs clang: configure with -DCMAKE_C_COMPILER=clang")
  endif()
  mf_c_options(-fsanitize=fuzzer-no-link)
endif()
