"""Operations that translate texts and documents, or detect their languages."""
