# Turns the file INPUT into the C array of proto/descriptors.h in the file OUTPUT.
file(READ ${INPUT} bytes HEX)
string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
string(REPEAT "." 80 line)
string(REGEX REPLACE "(${line})" "\\1\n" bytes "${bytes}")
file(WRITE ${OUTPUT} "#include \"proto/descriptors.h\"\n\n"
  "const unsigned char mf_descriptors[] = {\n${bytes}};\n"
  "const size_t mf_descriptors_bytes = sizeof(mf_descriptors);\n")
